"""Gives the SavedModel of tf.Transform the same bytes in every process that makes it.

TensorFlow numbers functions, captured tensors and tables by a counter of the process, keeps functions and their nodes
in the order of memory addresses, and names tables after temporary files. To a reader none of it matters: such names
need only agree within the file. Here they are numbered by their place. This module knows the messages; TensorFlow,
which takes seconds to load, is for `transform` alone.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

Message = Any  # of protobuf; TensorFlow's own come without types
Names = Mapping[str, str]
_NUMBERED = re.compile(r"^(.+_)(\d+)$")
_TABLE_FILLER = re.compile(r"(\bkey_value_init)\d+")


def canonical_bytes(model: Message) -> bytes:
    """The bytes of a SavedModel message after renaming; changes the message."""
    for graph in model.meta_graphs:
        for function in graph.graph_def.library.function:
            _rename_inside(function, captures=_count_captures(graph, function))
        _number_functions(graph)
        _number_tables(graph)
    return bytes(model.SerializeToString(deterministic=True))


def _count_captures(graph: Message, function: Message) -> int:
    saved = graph.object_graph_def.concrete_functions
    name = function.signature.name
    return len(saved[name].bound_inputs) if name in saved else 0  # looking up what is missing would add it


def _rename_inside(function: Message, *, captures: int) -> None:
    """Names captured tensors by their place among the last arguments, and what fills a table without its number."""
    names = {node.name: _TABLE_FILLER.sub(r"\1", node.name) for node in function.node_def}
    first = len(function.signature.input_arg) - captures
    for place, argument in enumerate(function.signature.input_arg[first:]):
        names[argument.name] = argument.name = f"captured_{place}"
        attributes = function.arg_attr[first + place].attr if first + place in function.arg_attr else {}
        if "_user_specified_name" in attributes:
            attributes["_user_specified_name"].s = argument.name.encode()
    _rename_references(function, names)


def _rename_references(function: Message, names: Names) -> None:
    for node in function.node_def:
        node.name = names[node.name]
        node.input[:] = [_rename_reference(each, names) for each in node.input]
    function.node_def.sort(key=attrgetter("name"))  # their edges say what comes first
    function.signature.control_output[:] = [names.get(each, each) for each in function.signature.control_output]
    for key, reference in function.ret.items():
        function.ret[key] = _rename_reference(reference, names)
    controls = {names.get(key, key): names.get(node, node) for key, node in function.control_ret.items()}
    function.control_ret.clear()
    function.control_ret.update(controls)


def _rename_reference(reference: str, names: Names) -> str:
    """`argument`, `node:output:0` or `^node`."""
    name = reference.removeprefix("^").partition(":")[0]
    return reference.replace(name, names.get(name, name), 1)


def _number_functions(graph: Message) -> None:
    """Orders functions as they were made, and numbers them in that order."""
    library = graph.graph_def.library
    library.function.sort(key=lambda function: _number(function.signature.name))
    names = {}
    for place, function in enumerate(library.function):
        old = function.signature.name
        function.signature.name = names[old] = _NUMBERED.sub(rf"\g<1>{place}", old)
    for node in _nodes(graph):
        for attribute in node.attr.values():
            called = [attribute.func] if attribute.HasField("func") else attribute.list.func
            for function in called:
                function.name = names.get(function.name, function.name)
    _rename_saved_functions(graph.object_graph_def, names)


def _number(name: str) -> tuple[int, str]:
    found = _NUMBERED.match(name)
    return (int(found[2]) if found else -1), name


def _rename_saved_functions(objects: Message, names: Names) -> None:
    functions = {names[name]: function.SerializeToString() for name, function in objects.concrete_functions.items()}
    objects.concrete_functions.clear()
    for name, content in functions.items():
        objects.concrete_functions[name].MergeFromString(content)
    for node in objects.nodes:
        if node.HasField("function"):
            node.function.concrete_functions[:] = [names[name] for name in node.function.concrete_functions]
        elif node.HasField("bare_concrete_function"):
            node.bare_concrete_function.concrete_function_name = names[
                node.bare_concrete_function.concrete_function_name
            ]


def _number_tables(graph: Message) -> None:
    """Tables of one name stay one table. Whoever loads two models keeps theirs apart: TensorFlow adds to the names."""
    names: dict[bytes, bytes] = {}
    for node in _nodes(graph):
        if node.op == "HashTableV2":
            shared = node.attr["shared_name"]
            shared.s = names.setdefault(shared.s, b"table_%d" % len(names))


def _nodes(graph: Message) -> Iterator[Message]:
    functions = graph.graph_def.library.function
    return chain(graph.graph_def.node, chain.from_iterable(function.node_def for function in functions))
