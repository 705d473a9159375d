"""What the manifest promises of every record: the values of each feature, boxes in the picture, label ids and names."""

from collections.abc import Mapping, Sequence

from shards.example import Values, decode_example
from shards.manifest import FeatureEntry
from shards.scan import Scanner

_PYTHON_TYPES = {"bytes": bytes, "int64": int, "float": float}


class Rules:
    """The promises of one manifest."""

    def __init__(self, features: Sequence[FeatureEntry], labels: Sequence[str], *, decode: bool) -> None:
        """With `decode`, the picture of each record must be one, of the size that the record says."""
        self._features, self._labels = features, labels
        self._names = [label.encode() for label in labels]
        self._per_box = [feature.name for feature in features if feature.per == "box" and feature.name != "boxes"]
        self._has_boxes = any(feature.per == "box" for feature in features)
        self._has_picture = decode and any(feature.name == "image" for feature in features)
        self._scanner = Scanner(features, check_values, wanted=["label_name", *(["image"] if decode else [])])

    def labels_of(self, record: bytes) -> list[str]:
        """The names of the record's labels; raises ValueError if the record breaks a promise."""
        example = self._scanner.scan(record)
        if example is None:
            example = decode_example(record)
            for feature in self._features:
                check_values(feature, example.get(feature.name))
        if self._has_boxes:
            self._check_boxes(example)
        if self._has_picture:
            _check_picture(example)
        numbers, names = example.get("label", []), example.get("label_name", [])
        if len(numbers) != len(names):
            raise ValueError(f"{len(numbers)} labels have {len(names)} names")
        return [self._named(number, name) for number, name in zip(numbers, names, strict=True)]

    def _check_boxes(self, example: Mapping[str, Values]) -> None:
        """Boxes are four fractions each, and every feature per box has a value for each."""
        count, rest = divmod(len(example["boxes"]), 4)
        if rest:
            raise ValueError(f"feature 'boxes' has {4 * count + rest} values, which are no boxes of four")
        for number in range(count):
            top, left, bottom, right = (float(side) for side in example["boxes"][4 * number : 4 * number + 4])
            if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
                raise ValueError(f"box {number} is {top:g}, {left:g}, {bottom:g}, {right:g}: not inside the picture")
        for name in self._per_box:
            if len(example[name]) != count:
                raise ValueError(f"feature {name!r} has {len(example[name])} values for {count} boxes")

    def _named(self, number: object, name: object) -> str:
        assert isinstance(number, int), "checked with the features"
        assert isinstance(name, bytes), "checked with the features"
        if not 0 <= number < len(self._labels) or self._names[number] != name:
            raise ValueError(f"label {number} is not {name.decode('utf-8', 'backslashreplace')!r}")
        return self._labels[number]


def check_values(feature: FeatureEntry, values: Values | None) -> None:
    """Raises ValueError unless there are as many values as the feature has, of its type."""
    is_long_enough = values is not None and feature.length in (None, len(values))
    if not is_long_enough or not all(isinstance(value, _PYTHON_TYPES[feature.type]) for value in values or ()):
        many = "one" if feature.length == 1 else feature.length or "a list of"
        raise ValueError(
            f"feature {feature.name!r} is not {many} {feature.type} value{'' if feature.length == 1 else 's'}"
        )


def _check_picture(example: Mapping[str, Values]) -> None:
    from shards.pictures import decoded_size  # here, because Pillow takes as long to load as many records to check

    for data in example["image"]:
        assert isinstance(data, bytes), "checked with the features"
        height, width = decoded_size(data)
        said = [*example.get("height", []), *example.get("width", [])]
        if said and said != [height, width]:
            raise ValueError(f"the picture is {width}x{height}, the record says {said[1]}x{said[0]}")
