"""The accounts of a build: every listed input is in exactly one, and the rejects stay within their budgets."""

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipelines.config import ALL, BuildConfig
from pipelines.finish.report import read_rejects
from pipelines.planning.plan import Plan
from pipelines.reasons import DUPLICATES
from pipelines.values import Account, Receipt
from pipelines.workspace.layout import BuildFolder
from shards.errors import ShardsmithError
from shards.manifest import Counts, SourceEntry


def count_up(receipts: Sequence[Receipt]) -> Counts:
    """The accounting over all shards."""
    rejected: Counter[str] = Counter()
    accounts: defaultdict[tuple[str, str], Account] = defaultdict(Account)
    for receipt in receipts:
        rejected.update(receipt.rejected)
        for source, account in receipt.sources.items():
            accounts[source, receipt.split] += account
    return Counts(
        listed=sum(receipt.listed for receipt in receipts),
        written=sum(receipt.records for receipt in receipts),
        rejected=dict(sorted(rejected.items())),
        duplicates=sum(receipt.duplicates for receipt in receipts),
        boxes_kept=sum(receipt.boxes_kept for receipt in receipts),
        boxes_dropped=sum(receipt.boxes_dropped for receipt in receipts),
        kept_truncated=sum(receipt.kept_truncated for receipt in receipts),
        sources=tuple(
            SourceEntry(source=source, split=split, **dataclasses.asdict(account))
            for (source, split), account in sorted(accounts.items())
        ),
    )


def check_accounting(plan: Plan, receipts: Sequence[Receipt], counts: Counts, folder: BuildFolder) -> None:
    """Every planned shard was written, and every planned input is in one account, and in a file if it was left out."""
    made = {receipt.shard.slug for receipt in receipts}
    written = [shard for shard in plan.shards if shard.slug in made]
    if len(written) != len(plan.shards):
        raise ShardsmithError(f"{len(written)} of {len(plan.shards)} planned shards were written; run the build again")
    planned = {(source, split.name): listed for split in plan.splits for source, listed in split.sources.items()}
    found = count_rejects(receipts, folder)
    for problem in (*counts.problems(), *_unplanned(planned, counts), *_unlisted(found, counts)):
        raise ShardsmithError(f"the accounting does not hold: {problem}; run the build again")


def _unplanned(planned: dict[tuple[str, str], int], counts: Counts) -> Iterator[str]:
    came = {(each.source, each.split): each.listed for each in counts.sources}
    for source, split in sorted(planned | came):
        expected, arrived = planned.get((source, split), 0), came.get((source, split), 0)
        if expected != arrived:
            place = f"source {source!r} in split {split!r}"
            yield f"{place} had {expected} inputs when it was planned and {arrived} when it was read: did it change?"


def count_rejects(receipts: Sequence[Receipt], folder: BuildFolder) -> Counter[tuple[str, str, str]]:
    """The lines of the rejects files by source, split and reason."""
    found: Counter[tuple[str, str, str]] = Counter()
    for shard in (receipt.shard for receipt in receipts):
        if folder.rejects(shard).exists():
            with folder.rejects(shard).open(encoding="utf-8") as stream:
                rows = map(json.loads, stream)
                found.update((row["source"], shard.split, row["reason"]) for row in rows)
    return found


def _unlisted(found: Counter[tuple[str, str, str]], counts: Counts) -> Iterator[str]:
    reasons: Counter[str] = Counter()
    listed: Counter[tuple[str, str, bool]] = Counter()
    for (source, split, reason), lines in found.items():
        listed[source, split, reason in DUPLICATES] += lines
        reasons[reason] += 0 if reason in DUPLICATES else lines
    for each in counts.sources:
        for what, expected, twice in (("rejected", each.rejected, False), ("duplicates", each.duplicates, True)):
            lines = listed[each.source, each.split, twice]
            if lines != expected:
                place = f"source {each.source!r} in split {each.split!r}"
                yield f"{place} has {expected} {what}, the files in rejected/ list {lines}"
    if +reasons != Counter(counts.rejected):
        yield f"the reasons are {counts.rejected}, the files in rejected/ list {dict(sorted((+reasons).items()))}"


class Limit(NamedTuple):
    """One budget: how many rejects of a reason are allowed, and the setting that says so."""

    setting: str  # as --set wants it
    reason: str
    allowed: float
    is_fraction: bool


def budget_limits(counts: Counts, config: BuildConfig) -> list[Limit]:
    """Every limit that is set; a reason that none of them covers may not occur."""
    budgets = {"max_reject_fraction": config.max_reject_fraction, "max_rejects": config.max_rejects}
    if all(budget is None for budget in budgets.values()):
        budgets["max_reject_fraction"] = 0.0
    limits: list[Limit] = []
    for name, budget in budgets.items():
        if isinstance(budget, dict):
            limits += [Limit(f"{name}.{reason}", reason, n, name != "max_rejects") for reason, n in budget.items()]
        elif budget is not None:
            limits.append(Limit(name, ALL, budget, name != "max_rejects"))
    if not any(limit.reason == ALL for limit in limits):
        setting = next(name for name, budget in budgets.items() if budget is not None)
        missing = [reason for reason in counts.rejected if reason not in {limit.reason for limit in limits}]
        limits += [Limit(f"{setting}.{reason}", reason, 0, setting != "max_rejects") for reason in missing]
    return limits


def check_budget(counts: Counts, config: BuildConfig, folder: BuildFolder) -> None:
    """Fails a build with more rejects than the budgets allow, and says what they are and what to do."""
    remedy = f"the full list is in {folder.root / 'rejected'}; mend these inputs and give the same command again"
    if counts.written == 0:
        raise ShardsmithError(f"no input could be used: {rejected_summary(counts, folder)}\n  {remedy}")
    exceeded = [limit for limit in budget_limits(counts, config) if _amount(limit, counts) > limit.allowed]
    if exceeded:
        allowing = " ".join(f"--set {limit.setting}={_enough(limit, counts)}" for limit in exceeded)
        raise ShardsmithError(
            f"{'; '.join(_told(limit, counts) for limit in exceeded)}: {rejected_summary(counts, folder)}\n"
            f"  {remedy}, or run it with {allowing} to allow them"
        )


def _rejected(limit: Limit, counts: Counts) -> int:
    return sum(counts.rejected.values()) if limit.reason == ALL else counts.rejected.get(limit.reason, 0)


def _amount(limit: Limit, counts: Counts) -> float:
    rejected = _rejected(limit, counts)
    return rejected / counts.listed if limit.is_fraction else rejected


def _told(limit: Limit, counts: Counts) -> str:
    rejected = _rejected(limit, counts)
    as_what = "" if limit.reason == ALL else f" as {limit.reason}"
    share = f" ({rejected / counts.listed:.2%})" if limit.is_fraction else ""
    allowed = f"{limit.allowed:.2%}" if limit.is_fraction else f"{limit.allowed}"
    return f"{rejected:,} of {counts.listed:,} inputs were rejected{as_what}{share}, {limit.setting} allows {allowed}"


def _enough(limit: Limit, counts: Counts) -> float:
    """The smallest limit that allows what there is; fractions in thousandths, rounded up."""
    rejected = _rejected(limit, counts)
    return -(-rejected * 1000 // counts.listed) / 1000 if limit.is_fraction else rejected


def rejected_summary(counts: Counts, folder: BuildFolder, *, examples: int = 5) -> str:
    """Counts by reason, then the first few rejects by key."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.rejected.items())
    shown = [
        f"\n  {row['key']}: {row['reason']}: {row['message']}" for row in read_rejects(folder.root, limit=examples)
    ]
    more = sum(counts.rejected.values()) - len(shown)
    return reasons + "".join(shown) + (f"\n  and {more:,} more" if more > 0 else "")
