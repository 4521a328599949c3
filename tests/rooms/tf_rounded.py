"""python tf_rounded.py: in which graphs is a gradient seen that was bfloat16 for a moment, on its way into an update?

Prints a line of JSON: by the name of each graph, whether it is. The way leads through functions.
"""

import json

import tensorflow as tf

from tf_impl.formats import rounded
from tf_impl.graphs import bodies

KERNEL, BATCH = tf.Variable(tf.ones((4, 4))), tf.ones((2, 4))


def narrow(x):
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)


def product():
    """As a layer in bf16 has its gradient: the product is in bfloat16, and is cast once."""
    return tf.cast(tf.matmul(tf.cast(BATCH, tf.bfloat16), tf.cast(BATCH, tf.bfloat16), transpose_a=True), tf.float32)


def function(method):
    return tf.function(method, jit_compile=True, autograph=False)


returns_rounded = function(lambda: (tf.constant(1.0), narrow(KERNEL * 2.0)))
returns_narrow = function(lambda: tf.cast(KERNEL * 2.0, tf.bfloat16))
returns_product = function(lambda: (tf.constant(1.0), product()))
hands_on = function(lambda x: (x, returns_rounded()[1]))
updates = function(lambda rate, x: KERNEL.assign_sub(rate * x))
updates_further_in = function(lambda x: updates(tf.constant(0.5), x))


def in_a_loop():
    def body(count):
        KERNEL.assign_sub(narrow(KERNEL * 2.0))
        return (count + 1,)

    tf.while_loop(lambda count: count < 2, body, (0,))


def split_kernel():
    """The gradient of a kernel that is split in two, as of queries and keys, is joined again."""
    with tf.GradientTape() as tape:
        halves = tf.split(tf.cast(KERNEL, tf.bfloat16), 2, axis=1)
        loss = tf.add_n([tf.reduce_sum(tf.matmul(tf.cast(BATCH, tf.bfloat16), half)) for half in halves])
    return tape.gradient(loss, KERNEL)


def carried():
    """A sum over parts that a loop carries in bfloat16."""
    start = (0, tf.zeros((4, 4), tf.bfloat16))
    _, total = tf.while_loop(
        lambda count, _: count < 2, lambda count, total: (count + 1, total + tf.cast(KERNEL * 2.0, tf.bfloat16)), start
    )
    return tf.cast(total, tf.float32)


GRAPHS = {
    "stopped": lambda: KERNEL.assign_sub(tf.cast(tf.stop_gradient(tf.cast(KERNEL * 2.0, tf.bfloat16)), tf.float32)),
    "in another order": lambda: KERNEL.assign_sub(
        tf.transpose(tf.cast(tf.transpose(tf.cast(KERNEL * 2.0, tf.bfloat16)), tf.float32))
    ),
    "a part": lambda: KERNEL.assign_sub(tf.cast(tf.cast(tf.tile(KERNEL * 2.0, (2, 1)), tf.bfloat16)[:4], tf.float32)),
    "in a branch": lambda: KERNEL.assign_sub(
        tf.cond(tf.reduce_max(KERNEL) < 9.0, lambda: narrow(KERNEL * 2.0), lambda: KERNEL * 2.0)
    ),
    "carried by a loop": lambda: KERNEL.assign_sub(carried()),
    "quantized": lambda: KERNEL.assign_sub(tf.quantization.fake_quant_with_min_max_vars(KERNEL * 2.0, -3.0, 3.0)),
    "by bits": lambda: KERNEL.assign_sub(tf.bitcast(tf.bitcast(KERNEL * 2.0, tf.uint32), tf.float32)),
    "right, split": lambda: KERNEL.assign_sub(split_kernel()),
    "returned": lambda: KERNEL.assign_sub(returns_rounded()[1]),
    "returned narrow": lambda: KERNEL.assign_sub(tf.cast(returns_narrow(), tf.float32)),
    "returned from further in": lambda: KERNEL.assign_sub(hands_on(BATCH)[1]),
    "handed over": lambda: updates(tf.constant(0.5), narrow(KERNEL * 2.0)),
    "handed over further in": lambda: updates_further_in(narrow(KERNEL * 2.0)),
    "in a loop": in_a_loop,
    "right": lambda: KERNEL.assign_sub(returns_product()[1]),
    "right, another result": lambda: KERNEL.assign_sub(hands_on(tf.ones((4, 4)))[0]),
    "right, handed over": lambda: updates(tf.constant(0.5), product()),
}
found = {}
for name, graph in GRAPHS.items():
    traced = tf.function(graph, autograph=False).get_concrete_function().graph.as_graph_def()
    found[name] = any(rounded(bodies(traced)))
print(json.dumps(found))
