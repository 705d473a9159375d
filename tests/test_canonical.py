"""Canonical SavedModels: the same bytes whatever was made before, and still the same function."""

import random

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from pipelines.analysis.canonical import canonical_bytes


class Model(tf.Module):
    """A table, a captured constant, a variable and a function in a function: what gets numbers and names."""

    def __init__(self):
        super().__init__()
        ids = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([5, 7], tf.int64))
        self.table = tf.lookup.StaticHashTable(ids, default_value=-1)
        self.weights = tf.Variable(tf.range(300.0))
        self.large = tf.reverse(tf.range(300.0), [0])  # small ones become part of the graph

    @tf.function
    def inner(self, name):
        return tf.cast(self.table.lookup(name), tf.float32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, name):
        return self.inner(name) + tf.reduce_sum(self.weights * self.large)


def save(path):
    tf.saved_model.save(Model(), str(path))
    return (path / "saved_model.pb").read_bytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("canonical") / "first")


def canonical(content):
    return canonical_bytes(SavedModel.FromString(content))


def test_what_was_made_before_leaves_no_trace(saved, tmp_path):
    again = save(tmp_path / "again")
    assert again != saved
    assert canonical(again) == canonical(saved)


def test_a_canonical_model_stays_as_it_is(saved):
    assert canonical(canonical(saved)) == canonical(saved) != saved


def test_names_are_numbered_by_place(saved):
    graph = SavedModel.FromString(canonical(saved)).meta_graphs[0]
    functions = graph.graph_def.library.function
    assert [int(function.signature.name.rpartition("_")[2]) for function in functions] == list(range(len(functions)))
    assert set(graph.object_graph_def.concrete_functions) <= {function.signature.name for function in functions}
    nodes = [*graph.graph_def.node, *(node for function in functions for node in function.node_def)]
    assert {node.attr["shared_name"].s for node in nodes if node.op == "HashTableV2"} == {b"table_0"}
    (fill,) = [node for node in nodes if node.op == "LookupTableImportV2"]
    assert (fill.name, list(fill.input)) == (
        "key_value_init/LookupTableImportV2",
        ["captured_0", "captured_1", "captured_2"],
    )


def test_a_canonical_model_computes_the_same(tmp_path):
    content = save(tmp_path)
    names = tf.constant(["b", "x", "a"])
    expected = tf.saved_model.load(str(tmp_path))(names).numpy().tolist()
    (tmp_path / "saved_model.pb").write_bytes(canonical(content))
    (tmp_path / "fingerprint.pb").unlink()
    assert tf.saved_model.load(str(tmp_path))(names).numpy().tolist() == expected
    assert expected[0] - expected[1] == 8


@given(st.integers(0, 2**32))
def test_the_order_of_functions_and_nodes_does_not_matter(saved, seed):
    model = SavedModel.FromString(saved)
    functions = model.meta_graphs[0].graph_def.library.function
    shuffle = random.Random(seed)
    for function in functions:
        function.node_def.sort(key=lambda _: shuffle.random())
    functions.sort(key=lambda _: shuffle.random())
    assert canonical_bytes(model) == canonical(saved)
