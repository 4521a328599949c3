"""The networks, as Flax Linen modules. Each is an ordered list of blocks, so that strategies can cut it anywhere.

Flax recommends NNX to new users. The networks are in Linen because `apply` is a pure function of plain dictionaries,
which every strategy transforms as it is. NNX is as fast if its states are split once and held as dictionaries. A call
of nnx.jit takes the host 6.8 times as long, and one of nnx.jit_partial 1.15 times (reports/probes/nnx).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from harness.spec import Precision, of_layers, workload_packages
from harness.workloads import Workload
from jax_impl import runtime, weights

Block = Callable[[jax.Array], jax.Array]
Layer = Callable[[Any], Any]
"""Maps the class of a layer, such as nn.Conv, to the class that a network uses in its place."""


class Network(nn.Module, kw_only=True):
    """Layers compute in `dtype`; parameters and the output are in `param_dtype`.

    `axis_name`: the mapped axis over which BatchNorm shares its statistics; None to use only the samples it sees.
    `momentum`: what BatchNorm's running statistics keep of themselves in an update. `inference`: BatchNorm normalizes
    with its running statistics. `layer`: a strategy may use it to transform the layers, for example to gather their
    parameters.
    """

    dtype: DTypeLike
    param_dtype: DTypeLike
    axis_name: str | None = None
    momentum: float = 0.9
    inference: bool = False
    layer: Layer = lambda kind: kind

    def blocks(self) -> dict[str, Block]:
        """The blocks in order, by their names in the workload. Called while Flax applies the network."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: jax.Array, start: int = 0, end: int | None = None) -> jax.Array:
        """The output of blocks `start` to `end`, by default of all. It needs the parameters of these blocks only."""
        for block in list(self.blocks().values())[start:end]:
            x = block(x)
        return x


class OfOnesOwn:
    """A network of a package of one's own, which may be any Flax module.

    Modules may lie in one another. The trees of all strategies have one entry for each layer instead: the module b in a
    module a is the layer "a.b". Raises ValueError if parameters or outputs are not those of the workload.
    """

    def __init__(self, module: nn.Module, plain: nn.Module, workload: Workload, param_dtype: DTypeLike) -> None:
        """`plain`: the module before a strategy has transformed its layers, which has the same variables."""
        self.module, self.plain, self.param_dtype = module, plain, param_dtype
        sample = jax.ShapeDtypeStruct((1, *workload.input_shape), param_dtype)
        outputs, variables = jax.eval_shape(plain.init_with_output, jax.random.key(0), sample)
        paths = [path[:-1] for tree in variables.values() for path in flatten_dict(tree)]
        self.paths = {".".join(path): path for path in paths}
        tree = self._flat(variables).get("params", {})
        leaves: dict[Any, Any] = flatten_dict(tree)
        found = {weights.canonical_name(*names): leaf.shape for names, leaf in leaves.items()}
        expected = {parameter.name: parameter.shape for parameter in workload.parameters()}
        workload_packages.check_model(workload.name, "jax", parameters=found, expected=expected)
        shape = outputs.shape[1:]
        workload_packages.check_outputs(workload.name, "jax", outputs=shape, expected=workload.output_shape)

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        """Initial variables."""
        return self._flat(self.plain.init(key, x))

    def apply(self, variables: Any, x: jax.Array, *cut: int, mutable: Any = False) -> Any:
        """The outputs for `x`, in the parameters' number format, and with `mutable` what has changed. `cut`: as in
        Network."""
        nested = {kind: self._nested(tree) for kind, tree in variables.items()}
        found: Any = self.module.apply(nested, x, *cut, mutable=mutable)
        outputs, changed = found if mutable else (found, {})
        outputs = outputs if cut else outputs.astype(self.param_dtype)
        return (outputs, self._flat(changed)) if mutable else outputs

    def _nested(self, tree: Any) -> Any:
        return unflatten_dict(
            {(*self.paths[layer], leaf): array for (layer, leaf), array in flatten_dict(tree).items()}
        )

    def _flat(self, variables: Any) -> Any:
        return {
            kind: unflatten_dict({(".".join(path[:-1]), path[-1]): leaf for path, leaf in flatten_dict(tree).items()})
            for kind, tree in variables.items()
        }


def build(
    workload: Workload,
    *,
    precision: Precision,
    axis_name: str | None = None,
    momentum: float = 0.9,
    inference: bool = False,
    layer: Layer | None = None,
    settings: Mapping[str, bool] = MappingProxyType({}),
) -> Network | OfOnesOwn:
    """The network of `workload` in the number formats of `precision`. `settings`: those of the job, if they matter;
    for the other keywords see Network."""
    module = workload_packages.model_module(workload.name, "jax", ours_in=__name__)
    model = importlib.import_module(module).Model
    dtype, param_dtype = runtime.COMPUTE_DTYPES[precision], runtime.DTYPES[precision]
    formats: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
    known: dict[str, Any] = {"axis_name": axis_name, "momentum": momentum, "inference": inference}
    known |= {"layer": layer} if layer else {}
    if workload_packages.is_ours(workload.name):
        known |= of_layers(settings)
        return model(**workload.dims, **formats, **known)
    # a Flax module that knows nothing of blocks is one layer
    transformed, known = (model, known) if issubclass(model, Network) else (layer(model) if layer else model, {})
    plain = model(**workload.dims, **formats, **{name: value for name, value in known.items() if name != "layer"})
    return OfOnesOwn(transformed(**workload.dims, **formats, **known), plain, workload, param_dtype)
