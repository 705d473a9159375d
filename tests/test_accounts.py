"""The accounts: every input in exactly one, on every level, and budgets that say what was exceeded and what to do."""

import json
import re
from pathlib import Path

import pytest
from conftest import make_config, make_ref, run_build
from pictures import encoded, picture, write_class_folders

from pipelines.config import BuildConfig
from pipelines.finish.accounts import check_accounting, check_budget, count_rejects, count_up
from pipelines.planning.listing import Listing
from pipelines.planning.plan import Plan, make_plan
from pipelines.planning.splits import deal
from pipelines.reasons import DUPLICATES, Reason
from pipelines.values import Account, Receipt
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError
from shards.settings import validate
from shards.verify import verify

ROOT = Path(__file__).parent.parent


def receipt(index: int = 0, *, listed: int = 10, records: int = 10, duplicates: int = 0, **rejected: int) -> Receipt:
    return Receipt(
        split="train", index=index, listed=listed, records=records, bytes=1, sha256="", index_sha256="", inputs="",
        labels={}, rejected=rejected, formats={}, smallest=(1, 1), largest=(1, 1), duplicates=duplicates,
        boxes_kept=4, boxes_dropped=3, kept_truncated=2,
        sources={"default": Account(listed, records, sum(rejected.values()), duplicates)},
    )  # fmt: skip


def plan_for(images: int, shards: int) -> Plan:
    config = make_config("raw", "out", splits={"fractions": {"train": 1.0}}, shards={"count": shards})
    listing = Listing()
    for number in range(images):
        listing.add(deal(make_ref(str(number), "a", size=10), config.splits), config)
    return make_plan(listing, config)


@pytest.fixture
def folder(tmp_path):
    folder = BuildFolder(tmp_path / "out")
    folder.prepare(anew=False)
    return folder


def save_rejects(folder: BuildFolder, *reasons: str, source: str = "default") -> None:
    rows = [
        {"key": f"a/{n}.jpg", "source": source, "reason": reason, "message": "cut"} for n, reason in enumerate(reasons)
    ]
    path = folder.root / "rejected" / "train-00000.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_counts_add_up():
    counts = count_up(
        [
            receipt(listed=10, records=6, truncated=3, duplicates=1),
            receipt(listed=5, records=3, truncated=1, empty_file=1),
        ]
    )
    assert counts.model_dump() == {
        "listed": 15, "written": 9, "rejected": {"empty_file": 1, "truncated": 4}, "duplicates": 1,
        "boxes_kept": 8, "boxes_dropped": 6, "kept_truncated": 4,
        "sources": (
            {"source": "default", "split": "train", "listed": 15, "written": 9, "rejected": 5, "duplicates": 1},
        ),
    }  # fmt: skip
    assert counts.problems() == []


def test_a_missing_shard_or_input_stops_the_commit(folder):
    plan = plan_for(20, 2)
    whole = [receipt(0), receipt(1)]
    check_accounting(plan, whole, count_up(whole), folder)
    with pytest.raises(ShardsmithError) as caught:
        check_accounting(plan, whole[:1], count_up(whole[:1]), folder)
    assert str(caught.value) == "1 of 2 planned shards were written; run the build again"
    lost = [receipt(0), receipt(1, records=9)]
    with pytest.raises(ShardsmithError) as caught:
        check_accounting(plan, lost, count_up(lost), folder)
    assert str(caught.value) == (
        "the accounting does not hold: the dataset: 20 listed are not 19 written + 0 rejected + 0 duplicates; "
        "run the build again"
    )
    fewer = [receipt(0), receipt(1, listed=9, records=9)]
    with pytest.raises(ShardsmithError) as caught:
        check_accounting(plan, fewer, count_up(fewer), folder)
    assert str(caught.value) == (
        "the accounting does not hold: source 'default' in split 'train' had 20 inputs when it was planned and 19 when "
        "it was read: did it change?; run the build again"
    )


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["truncated"], "source 'default' in split 'train' has 2 rejected, the files in rejected/ list 1"),
        (["truncated"] * 3, "source 'default' in split 'train' has 2 rejected, the files in rejected/ list 3"),
        (["truncated", "truncated", "listed_twice"], "split 'train' has 0 duplicates, the files in rejected/ list 1"),
        (
            ["truncated", "empty_file"],
            "the reasons are {'truncated': 2}, the files in rejected/ list {'empty_file': 1, 'truncated': 1}",
        ),
    ],
)
def test_the_files_of_rejects_are_counted_again(folder, lines, problem):
    plan, receipts = plan_for(10, 1), [receipt(0, records=8, truncated=2)]
    save_rejects(folder, "truncated", "truncated")
    check_accounting(plan, receipts, count_up(receipts), folder)
    save_rejects(folder, *lines)
    with pytest.raises(ShardsmithError, match=re.escape(problem)):
        check_accounting(plan, receipts, count_up(receipts), folder)


def test_rejects_of_another_source_do_not_stand_in(folder):
    plan, receipts = plan_for(10, 1), [receipt(0, records=8, truncated=2)]
    save_rejects(folder, "truncated", "truncated", source="other")
    with pytest.raises(ShardsmithError, match="source 'default' in split 'train' has 2 rejected, .* list 0"):
        check_accounting(plan, receipts, count_up(receipts), folder)


def exceed(folder, counts, **budgets) -> str:
    try:
        check_budget(counts, make_config("raw", folder.root, **budgets), folder)
    except ShardsmithError as error:
        return str(error)
    return ""


def test_the_budget_says_what_was_rejected_and_what_to_do(folder):
    save_rejects(folder, *["truncated"] * 7)
    counts = count_up([receipt(listed=100, records=93, truncated=7)])
    assert exceed(folder, counts, max_reject_fraction=0.05) == (
        "7 of 100 inputs were rejected (7.00%), max_reject_fraction allows 5.00%: 7 truncated"
        + "".join(f"\n  a/{n}.jpg: truncated: cut" for n in range(5))
        + f"\n  and 2 more\n  the full list is in {folder.root}/rejected; mend these inputs and "
        "give the same command again, or run it with --set max_reject_fraction=0.07 to allow them"
    )
    assert exceed(folder, counts, max_reject_fraction=0.07) == ""
    nothing = count_up([receipt(listed=3, records=0, truncated=3)])
    assert exceed(folder, nothing, max_reject_fraction=1.0).startswith("no input could be used: 3 truncated\n")
    assert exceed(folder, nothing).endswith("mend these inputs and give the same command again")


FRACTION, NUMBER = "max_reject_fraction", "max_rejects"


@pytest.mark.parametrize(
    ("budgets", "told", "allowing"),
    [
        ({}, f"10 of 100 inputs were rejected (10.00%), {FRACTION} allows 0.00%", f"--set {FRACTION}=0.1"),
        ({NUMBER: 9}, f"10 of 100 inputs were rejected, {NUMBER} allows 9", f"--set {NUMBER}=10"),
        ({NUMBER: 10}, "", ""),
        ({NUMBER: 0}, f"10 of 100 inputs were rejected, {NUMBER} allows 0", f"--set {NUMBER}=10"),
        (
            {NUMBER: {"truncated": 6, "all": 50}},
            f"7 of 100 inputs were rejected as truncated, {NUMBER}.truncated allows 6",
            f"--set {NUMBER}.truncated=7",
        ),
        ({NUMBER: {"truncated": 7, "all": 10}}, "", ""),
        ({NUMBER: {"truncated": 7, "empty_file": 3}}, "", ""),
        (  # a reason that no limit covers may not occur
            {NUMBER: {"truncated": 7}},
            f"3 of 100 inputs were rejected as empty_file, {NUMBER}.empty_file allows 0",
            f"--set {NUMBER}.empty_file=3",
        ),
        ({NUMBER: {"truncated": 7}, FRACTION: 0.1}, "", ""),
        ({NUMBER: {"truncated": 7}, FRACTION: {"empty_file": 0.03}}, "", ""),
        (
            {FRACTION: {"truncated": 0.05, "all": 0.09}},
            f"7 of 100 inputs were rejected as truncated (7.00%), {FRACTION}.truncated allows 5.00%; "
            f"10 of 100 inputs were rejected (10.00%), {FRACTION}.all allows 9.00%",
            f"--set {FRACTION}.truncated=0.07 --set {FRACTION}.all=0.1",
        ),
        (
            {FRACTION: 0.1, NUMBER: 3},
            f"10 of 100 inputs were rejected, {NUMBER} allows 3",
            f"--set {NUMBER}=10",
        ),
    ],
)
def test_budgets_by_number_fraction_and_reason(folder, budgets, told, allowing):
    save_rejects(folder, *["truncated"] * 7, *["empty_file"] * 3)
    counts = count_up([receipt(listed=100, records=90, truncated=7, empty_file=3)])
    message = exceed(folder, counts, **budgets)
    assert message.partition(": 3 empty_file, 7 truncated\n")[0] == told
    assert not told or message.endswith(f"command again, or run it with {allowing} to allow them")


def test_what_the_message_suggests_is_enough(folder):
    for rejected in range(1, 1000):
        counts = count_up([receipt(listed=1000, records=1000 - rejected, truncated=rejected)])
        suggested = float(re.search(r"--set max_reject_fraction=([\d.]+) ", exceed(folder, counts))[1])
        assert exceed(folder, counts, max_reject_fraction=suggested) == ""
        assert exceed(folder, counts, max_reject_fraction=round(suggested - 0.001, 3)) != ""


def test_several_sources_have_an_account_each(tmp_path, capsys):
    """Two sources, two splits, rejects, an input that is listed twice, and a key that two inputs have."""
    web = write_class_folders(tmp_path / "web", images=8)
    (web / "cat" / "cut.jpg").write_bytes(encoded(picture(1))[:150])
    lab = tmp_path / "lab"
    lab.mkdir()
    for number in range(6):
        (lab / f"{number}.png").write_bytes(encoded(picture(50 + number), "png"))
    rows = [f"{number}.png,cat,{'train' if number < 4 else 'test'}," for number in range(6)]
    rows += ["0.png,cat,train,", "0.png,cat,train,", "1.png,cat,test,5.png", "nowhere.png,dog,test,", "2.png,,test,"]
    (lab / "list.csv").write_text("path,label,split,id\n" + "\n".join(rows) + "\n")
    sources = [{"path": str(web), "name": "web", "split": "train"}, {"path": f"{lab}/list.csv", "name": "lab"}]
    values = {"output": f"{tmp_path}/out", "max_reject_fraction": 0.5, "image": {"resize": "exact:8"}}
    config = validate(BuildConfig, {"sources": sources, **values}, place="the test")
    manifest = run_build(config)
    counts = manifest.counts
    told = [(e.source, e.split, e.listed, e.written, e.rejected, e.duplicates) for e in counts.sources]
    assert told[-1] == ("web", "train", 17, 16, 1, 0)
    assert sum(each[2] for each in told[:-1]) == 11
    assert (counts.listed, counts.written, counts.duplicates) == (28, 22, 2)
    assert counts.rejected == {"duplicate_key": 1, "no_label": 1, "truncated": 1, "unreadable": 1}
    assert verify(tmp_path / "out") == []
    lines = [json.loads(line) for path in (tmp_path / "out" / "rejected").iterdir() for line in path.open()]
    assert sorted((line["source"], line["reason"], line["key"], line["location"]) for line in lines) == [
        ("lab", "duplicate_key", "lab/5.png", "5.png"),
        ("lab", "listed_twice", "lab/0.png", "0.png"),
        ("lab", "listed_twice", "lab/0.png", "0.png"),
        ("lab", "no_label", "lab/list.csv line 12", "list.csv"),
        ("lab", "unreadable", "lab/nowhere.png", "nowhere.png"),
        ("web", "truncated", "web/cat/cut.jpg", "cat/cut.jpg"),
    ]
    shown = re.sub(r"[│┃]", "", capsys.readouterr().out)
    assert re.search(r"web +train +17 +16 +1 +0", shown)
    assert "28 listed = 22 written + 4 rejected + 2 duplicates" in shown


def test_quarantine_keeps_the_bytes_once(tmp_path):
    source = write_class_folders(tmp_path / "raw", images=6)
    broken = {"a.jpg": encoded(picture(1))[:150], "b.jpg": encoded(picture(1))[:150], "c.jpg": b"text", "d.jpg": b""}
    for name, content in broken.items():
        (source / "cat" / name).write_bytes(content)
    config = make_config(source, tmp_path / "out", max_rejects=4, quarantine=True, image={"resize": "exact:8"})
    manifest = run_build(config)
    assert sum(manifest.counts.rejected.values()) == 4
    lines = [json.loads(line) for path in (tmp_path / "out" / "rejected").glob("*.jsonl") for line in path.open()]
    kept = {path for path in (tmp_path / "out" / "rejected" / "quarantine").rglob("*") if path.is_file()}
    assert len(kept) == 2
    for line in lines:
        content = broken[Path(line["key"]).name]
        assert line["bytes"] == len(content)
        if content:
            folder = tmp_path / "out" / "rejected" / "quarantine" / line["sha256"][:2]
            assert (folder / line["sha256"]).read_bytes() == content
        else:
            assert line["sha256"] == ""
    assert {path.relative_to(tmp_path / "out").as_posix() for path in kept} <= {e.path for e in manifest.files}
    assert verify(tmp_path / "out") == []
    (sorted(kept)[0]).write_bytes(b"other")
    assert len(verify(tmp_path / "out")) == 1


def test_a_plan_counts_inputs_by_source_and_split():
    sources = [{"path": "a", "name": "a"}, {"path": "b", "name": "b"}]
    config = validate(BuildConfig, {"sources": sources, "output": "out"}, place="the test")
    first, second = Listing(), Listing()
    for number in range(10):
        first.add(make_ref(f"a{number}", "x", size=9, dealt="train"), config)
        second.add(make_ref(f"b{number}", "x", dealt="test" if number < 3 else "train", size=9, source=1), config)
    plan = make_plan(first.merge(second), config)
    assert {split.name: split.sources for split in plan.splits} == {"train": {"a": 10, "b": 7}, "test": {"b": 3}}


def test_count_rejects_reads_the_files_of_planned_shards_only(folder):
    save_rejects(folder, "truncated", "truncated", "bad_row")
    assert count_rejects([receipt()], folder) == {
        ("default", "train", "truncated"): 2,
        ("default", "train", "bad_row"): 1,
    }


def test_every_reason_is_documented():
    """The README's table of reasons is the list in the code, no more and no less."""
    table = (ROOT / "README.md").read_text().partition("| reason | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    documented = [name for row in table.splitlines() for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert sorted(documented) == sorted([*Reason, *DUPLICATES])
