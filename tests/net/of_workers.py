"""Guarantees about what workers get and may touch, and about what a user is told."""

from guarantee import Break, Guarantee

TITLE = "Workers, plug-ins and input"

VARIABLES = "test_workers::test_a_worker_has_the_variables_that_it_may_have_and_no_others"
SCRUBBED = "test_launch::test_workers_get_a_scrubbed_environment"

GUARANTEES = (
    Guarantee(
        name="scrubbed-environment",
        promise="A worker has the variables of the caller that are named, and no others: no stale RANK or TF_CONFIG "
        "reaches it.",
        breaks=(
            Break(
                fault="all variables are passed on",
                edits=(
                    (
                        "harness/machine/worker_variables.py",
                        "if (name in PASSED or name.startswith(PASSED_PREFIXES)) and (",
                        "if (",
                    ),
                ),
                tests=(SCRUBBED, VARIABLES),
            ),
            Break(
                fault="the supervisor gives ranks its own variables as well",
                edits=(
                    (
                        "harness/launch/supervisor.py",
                        "variables = process.environment | {",
                        "variables = os.environ | process.environment | {",
                    ),
                ),
                tests=(VARIABLES,),
            ),
        ),
    ),
    Guarantee(
        name="secrets",
        promise="No variable that is named like a secret reaches a worker, a log or a report.",
        breaks=(
            Break(
                fault="names are not looked at",
                edits=(
                    (
                        "harness/machine/worker_variables.py",
                        "(name in NO_SECRETS or not SECRETS.search(name))",
                        "SECRETS",
                    ),
                ),
                tests=("test_launch::test_no_secret_reaches_a_worker_or_a_report", VARIABLES),
            ),
        ),
    ),
    Guarantee(
        name="nvlink-variables",
        promise="NCCL_NVLS_ENABLE, TORCH_SYMM_MEM_DISABLE_MULTICAST and NVSHMEM_DISABLE_NVLS reach every worker and "
        "are recorded.",
        breaks=(
            Break(
                fault="NCCL's variables are not passed on",
                edits=(
                    (
                        "harness/machine/worker_variables.py",
                        '"NVIDIA_DRIVER", "NCCL_", "NVSHMEM_"',
                        '"NVIDIA_DRIVER", "NVSHMEM_"',
                    ),
                ),
                tests=(SCRUBBED, VARIABLES),
            ),
            Break(
                fault="NVSHMEM's variables are not passed on",
                edits=(
                    (
                        "harness/machine/worker_variables.py",
                        '"NVIDIA_DRIVER", "NCCL_", "NVSHMEM_"',
                        '"NVIDIA_DRIVER", "NCCL_"',
                    ),
                ),
                tests=(SCRUBBED, VARIABLES),
            ),
            Break(
                fault="TORCH_ variables are not passed on",
                edits=(("harness/machine/worker_variables.py", '"TORCH",\n    "PYTORCH_"', '"PYTORCH_"'),),
                tests=(SCRUBBED, VARIABLES),
            ),
            Break(
                fault="NVSHMEM's variables are not recorded",
                edits=(
                    (
                        "harness/spec/recorded_variables.py",
                        '"CUDA_", "NVIDIA_TF32", "NCCL_", "NVSHMEM_", "CUDNN_"',
                        '"CUDA_", "NVIDIA_TF32", "NCCL_", "CUDNN_"',
                    ),
                ),
                tests=(VARIABLES,),
            ),
        ),
    ),
    Guarantee(
        name="numpy-alone",
        promise="A worker's interpreter needs NumPy and its framework, nothing else that the harness needs, and sees "
        "no package of the harness's interpreter.",
        breaks=(
            Break(
                fault="a worker imports what finds GPUs",
                edits=(("harness/worker/timing.py", "import math\n", "import math\n\nimport psutil\n"),),
                tests=("test_workers::test_a_worker_needs_numpy_and_its_framework_alone",),
            ),
            Break(
                fault="a worker imports safetensors though it saves nothing",
                edits=(
                    (
                        "harness/checkpoints.py",
                        "import numpy as np\n",
                        "import numpy as np\nimport safetensors.numpy\n",
                    ),
                ),
                tests=("test_workers::test_a_worker_needs_numpy_and_its_framework_alone",),
            ),
            Break(
                fault="a worker's path has a package of the harness's interpreter",
                edits=(
                    (
                        "harness/launch/worker_code.py",
                        'for name in ("harness", *packages):\n        _link',
                        'for name in ("harness", *packages, "pydantic"):\n        _link',
                    ),
                ),
                tests=("test_launch::test_workers_see_our_code_and_not_our_packages",),
            ),
        ),
    ),
    Guarantee(
        name="parent-without-frameworks",
        promise="Planning, running and reporting import no framework; a manifest imports the specs alone.",
        breaks=(
            Break(
                fault="a manifest imports its framework",
                edits=(
                    (
                        "torch_impl/manifest.py",
                        "from harness.spec import",
                        "import torch as _torch\nfrom harness.spec import",
                    ),
                ),
                tests=(
                    "test_architecture::test_planning_and_reporting_load_no_framework",
                    "test_architecture::test_manifests_import_only_specs[torch_impl]",
                ),
                error="CalledProcessError",
            ),
        ),
    ),
    Guarantee(
        name="order-of-packages",
        promise="The packages of the harness import each other in one direction only, and the parent process imports "
        "no code of the workers.",
        breaks=(
            Break(
                fault="results import the command line",
                edits=(
                    (
                        "harness/results/rates.py",
                        "    return global_batch * steps / seconds",
                        "    import harness.cli.app\n\n    return global_batch * steps / seconds",
                    ),
                ),
                tests=("test_architecture::test_packages_import_only_downwards[results]",),
            ),
            Break(
                fault="results import the workers' clock",
                edits=(
                    (
                        "harness/results/rates.py",
                        "    return global_batch * steps / seconds",
                        "    from harness.worker import timing\n\n    return global_batch * steps / seconds",
                    ),
                ),
                tests=("test_architecture::test_the_parent_imports_no_worker_code[results]",),
            ),
        ),
    ),
    Guarantee(
        name="broken-framework",
        promise="A framework that is missing or cannot be imported is a row that says why, and the others run.",
        breaks=(
            Break(
                fault="a failed import counts as a crash",
                edits=(
                    (
                        "harness/worker/main.py",
                        'raise Unavailable(f"cannot import {package}: {type(error).__name__}: {error}") from error',
                        "raise",
                    ),
                ),
                tests=("test_launch::test_a_framework_that_cannot_be_imported_is_unavailable_and_the_others_run",),
            ),
            Break(
                fault="nobody looks whether the interpreter has the framework",
                edits=(
                    (
                        "harness/spec/registry.py",
                        "            absent = json.loads(found.stdout.splitlines()[-1])",
                        "            absent = []",
                    ),
                ),
                tests=("test_cli::test_an_interpreter_without_the_framework_gives_unavailable_rows",),
            ),
        ),
    ),
    Guarantee(
        name="no-pickle",
        promise="Nothing is ever unpickled: samples, references and checkpoints that hold a pickle are refused.",
        breaks=(
            Break(
                fault="samples may hold pickles",
                edits=(
                    (
                        "harness/worker/main.py",
                        "np.load(order.inputs, allow_pickle=False)",
                        "np.load(order.inputs, allow_pickle=True)",
                    ),
                ),
                tests=(
                    "test_workers::test_a_worker_refuses_a_file_that_holds_a_pickle[inputs]",
                    "test_training::test_nothing_is_ever_unpickled",
                ),
            ),
            Break(
                fault="references may hold pickles",
                edits=(
                    (
                        "harness/reference/golden.py",
                        "np.load(path, allow_pickle=False) as archive:\n            for key",
                        "np.load(path, allow_pickle=True) as archive:\n            for key",
                    ),
                ),
                tests=(
                    "test_workers::test_a_worker_refuses_a_file_that_holds_a_pickle[golden]",
                    "test_training::test_nothing_is_ever_unpickled",
                ),
            ),
            Break(
                fault="an implementation imports pickle",
                edits=(("torch_impl/weights.py", "import numpy as np\n", "import pickle\n\nimport numpy as np\n"),),
                tests=("test_training::test_nothing_is_ever_unpickled",),
            ),
        ),
    ),
    Guarantee(
        name="plug-ins",
        promise="A framework in a package of its own is found by its entry point, and a broken one is named in one "
        "line; the plug-in that CONTRIBUTING.md shows is whole.",
        breaks=(
            Break(
                fault="entry points are not read",
                edits=(("harness/spec/registry.py", "return FRAMEWORKS | plugins", "return FRAMEWORKS"),),
                tests=(
                    "test_workers::test_plug_ins_are_found_by_their_entry_points_and_are_workers_like_ours",
                    "test_docs::test_the_plugin_in_contributing_is_whole",
                ),
            ),
            Break(
                fault="a broken plug-in ends in a traceback",
                edits=(
                    (
                        "harness/spec/registry.py",
                        "        if name in FRAMEWORKS:\n            raise\n",
                        "        if name:\n            raise\n",
                    ),
                ),
                tests=("test_cli::test_a_bad_plugin_is_named_in_one_line",),
            ),
        ),
    ),
    Guarantee(
        name="bad-input",
        promise="Bad input exits with 2 and one line that says what is allowed; nothing is launched or left behind.",
        breaks=(
            Break(
                fault="a usage error exits with 1",
                edits=(
                    (
                        "harness/cli/app.py",
                        "        case UsageError():\n            return fail(error, 2)",
                        "        case UsageError():\n            return fail(error, 1)",
                    ),
                ),
                tests=("test_cli::test_usage_errors_are_one_line_and_launch_nothing[arguments0-facts0]",),
            ),
            Break(
                fault="the folder of a run that cannot begin stays",
                edits=(
                    (
                        "harness/session/command.py",
                        "store.discard(folder)  # if nothing was measured",
                        "pass  # if nothing",
                    ),
                ),
                tests=("test_cli::test_bad_data_leaves_nothing_behind",),
            ),
            Break(
                fault="samples that are not the published ones are taken",
                edits=(("harness/datasets/mnist.py", "    if digest != md5:\n", "    if not digest:\n"),),
                tests=("test_data::test_damaged_idx_files_are_refused",),
            ),
        ),
    ),
)
