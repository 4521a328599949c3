"""A graph with the functions that it calls, walked as one: from an operation to those whose results it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf")
LOOPS = ("While", "StatelessWhile")
FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CALLS, ("f",)),
    **dict.fromkeys(BRANCHES, ("then_branch", "else_branch")),
    **dict.fromkeys(LOOPS, ("body",)),
}
"""The attributes that name the functions whose results an operation returns."""


@dataclass(eq=False)
class Body:
    """The operations of a graph, or of a function where it is called.

    `arguments`: where each argument comes from, as bodies and the results that they hand over. `calls`: the bodies of
    the functions that operations of this one call, by the operation's name; of a condition, those of both branches.
    """

    operations: Mapping[str, Any]
    arguments: dict[str, list[tuple[Body, str]]] = field(default_factory=dict)
    results: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    calls: dict[str, list[Body]] = field(default_factory=dict)

    def sources(self, operation: Any, *, past: Collection[str] = ()) -> Iterator[tuple[Body, Any]]:
        """The operations whose results one takes, with their bodies; instead of those of a kind in `past`, theirs."""
        seen: set[tuple[int, str]] = set()
        waiting: list[tuple[Body, Any]] = [(self, operation)]
        while waiting:
            body, node = waiting.pop()
            for given in (each for each in node.input if not each.startswith("^")):
                for found in body.origins(given, seen):
                    if found[1].op in past:
                        waiting.append(found)
                    else:
                        yield found

    def origins(self, given: str, seen: set[tuple[int, str]]) -> Iterator[tuple[Body, Any]]:
        """The operations that may compute a result ("name:2" in a graph, "name:output:2" in a function): in functions
        that are called and in the caller, if not in this body. Nothing for an argument whose caller is not known."""
        if (id(self), given) in seen:
            return
        seen.add((id(self), given))
        name, _, number = given.partition(":")
        if name in self.arguments:
            for body, handed in self.arguments[name]:
                yield from body.origins(handed, seen)
        elif name in self.calls:
            index = int(number.rpartition(":")[2] or 0)
            for body in self.calls[name]:
                yield from body.origins(body.results[body.outputs[index]], seen)
        elif name in self.operations:
            yield self, self.operations[name]


def bodies(definition: Any) -> list[Body]:
    """Those of a tf.compat.v1.GraphDef: the graph's, and that of each function wherever it is called. A function that
    none of these calls has one whose arguments come from nowhere."""
    functions = {function.signature.name: function for function in definition.library.function}
    found, known, reached = [Body({node.name: node for node in definition.node})], set(), 0

    def add(function: Any) -> Body:
        known.add(function.signature.name)
        outputs = tuple(each.name for each in function.signature.output_arg)
        found.append(Body({node.name: node for node in function.node_def}, {}, function.ret, outputs))
        return found[-1]

    for function in (None, *functions.values()):
        if function is not None and function.signature.name not in known:
            add(function)
        while reached < len(found):
            caller = found[reached]
            reached += 1
            for node in caller.operations.values():
                for attribute in FUNCTIONS.get(node.op, ()):
                    called = functions.get(node.attr[attribute].func.name)
                    if called is not None:
                        body = add(called)
                        caller.calls.setdefault(node.name, []).append(body)
                        hand_over(caller, node, called, body)
    return found


def hand_over(caller: Body, node: Any, function: Any, body: Body) -> None:
    """Note where the arguments of a called function come from. A loop's are its own results, too."""
    given = [each for each in node.input if not each.startswith("^")]
    names = [each.name for each in function.signature.input_arg]
    for name, handed in zip(names, given[1:] if node.op in BRANCHES else given, strict=True):
        body.arguments[name] = [(caller, handed)]
    if node.op in LOOPS:
        for name, output in zip(names, body.outputs, strict=True):
            body.arguments[name].append((body, body.results[output]))
