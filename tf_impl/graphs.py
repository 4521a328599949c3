"""A graph with the functions that it calls, walked as one: from an operation to those whose results it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@dataclass(eq=False)
class Body:
    """The operations of a graph, or of a function where it is called.

    `arguments`: where each argument comes from, as the body of the caller and the result that it hands over. `calls`:
    the bodies of the functions that operations of this one call, by the operation's name.
    """

    operations: Mapping[str, Any]
    arguments: Mapping[str, tuple[Body, str]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    calls: dict[str, Body] = field(default_factory=dict)

    def sources(self, operation: Any) -> Iterator[tuple[Body, Any]]:
        """The operations whose results one takes, with their bodies."""
        for given in operation.input:
            if not given.startswith("^") and (found := self.origin(given)):
                yield found

    def origin(self, given: str) -> tuple[Body, Any] | None:
        """The operation that computes a result ("name:2" in a graph, "name:output:2" in a function), in a function that
        is called or in the caller, if it is not in this body. None for an argument whose caller is not known."""
        body = self
        while True:
            name, _, number = given.partition(":")
            if name in body.arguments:
                body, given = body.arguments[name]
            elif name in body.calls:
                called = body.calls[name]
                body, given = called, called.results[called.outputs[int(number.rpartition(":")[2] or 0)]]
            else:
                operation = body.operations.get(name)
                return None if operation is None else (body, operation)


def bodies(definition: Any) -> list[Body]:
    """Those of a tf.compat.v1.GraphDef: the graph's, and that of each function wherever it is called. A function that
    none of these calls, such as the body of a loop, has one whose arguments come from nowhere."""
    functions = {function.signature.name: function for function in definition.library.function}
    found, known = [Body({node.name: node for node in definition.node})], set()

    def add(function: Any, arguments: Mapping[str, tuple[Body, str]]) -> Body:
        known.add(function.signature.name)
        outputs = tuple(each.name for each in function.signature.output_arg)
        body = Body({node.name: node for node in function.node_def}, arguments, function.ret, outputs)
        found.append(body)
        return body

    reached = 0
    for function in (None, *functions.values()):
        if function is not None and function.signature.name not in known:
            add(function, {})
        while reached < len(found):
            caller = found[reached]
            reached += 1
            for node in caller.operations.values():
                if node.op in CALLS and node.attr["f"].func.name in functions:
                    called = functions[node.attr["f"].func.name]
                    given = [each for each in node.input if not each.startswith("^")]
                    names = [each.name for each in called.signature.input_arg]
                    arguments = {name: (caller, each) for name, each in zip(names, given, strict=True)}
                    caller.calls[node.name] = add(called, arguments)
    return found
