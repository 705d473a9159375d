"""The workers of a cluster meet before TensorFlow joins them: each shows its card to each, or tells whom it missed.

TensorFlow by itself waits up to an hour for a worker that does not come, without a word and deaf to signals.
"""

import asyncio
import json
import os
import socket

from shards.errors import RestartMe
from trainer.running.cluster import Cluster, split_address

TALK_SECONDS = 10.0  # for one exchange of cards
RETRY_SECONDS = 0.2
SILENT_SECONDS = 10.0  # of waiting, before a person is told
CARD_BYTES = 2**24
STRANGER = "something answers there that is not a starting worker; an old run may be alive: restart all workers"


def meet(cluster: Cluster, card: str, *, seconds: float) -> list[str]:
    """The cards of all workers, in their order; gives up when some have not come after `seconds`."""
    return asyncio.run(_Meeting(cluster, card).hold(seconds)) if cluster.workers > 1 else [card]


class _Meeting:
    """One worker's view: whom it has visited, who has visited it, and what hinders the rest."""

    def __init__(self, cluster: Cluster, card: str) -> None:
        self._cluster = cluster
        self._hello = json.dumps({"worker": cluster.index, "card": card}).encode() + b"\n"
        self._cards = {cluster.index: card}
        self._visitors: set[int] = set()
        self._all_came = asyncio.Event()
        self._hindrances = dict.fromkeys(cluster.others, "no answer")

    async def hold(self, seconds: float) -> list[str]:
        """Receives every other worker and visits it, so that each link is known to work in both directions."""
        server = await self._open()
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                telling = tasks.create_task(self._tell_whom_we_wait_for())
                visits = [tasks.create_task(self._visit(peer)) for peer in self._cluster.others]
                await asyncio.gather(*visits, self._all_came.wait())
                telling.cancel()
        except TimeoutError:
            raise self._missed(seconds) from None
        finally:
            server.close()
        return [self._cards[index] for index in range(self._cluster.workers)]

    async def _open(self) -> asyncio.Server:
        address = self._cluster.addresses[self._cluster.index]
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            listener = socket.create_server(("", split_address(address)[1]), family=family, dualstack_ipv6=dual)
        except OSError as error:
            raise RestartMe(
                f"worker {self._cluster.index} cannot listen at {address}: {_reason(error)}; "
                "end the process that does, or choose another port in TF_CONFIG"
            ) from error
        return await asyncio.start_server(self._receive, sock=listener, limit=CARD_BYTES)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TALK_SECONDS):
                visitor, _ = _read_hello(await reader.readline())
                writer.write(self._hello)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, ValueError, TimeoutError):
            writer.close()  # a stranger, or one that will come again
            return
        self._visitors.add(visitor)
        if self._visitors >= set(self._cluster.others):
            self._all_came.set()

    async def _visit(self, peer: int) -> None:
        while peer not in self._cards:
            try:
                async with asyncio.timeout(TALK_SECONDS):
                    self._cards[peer] = await self._fetch_card(peer)
            except ValueError:
                self._hindrances[peer] = STRANGER
            except TimeoutError:
                self._hindrances[peer] = "no answer"
            except OSError as error:
                self._hindrances[peer] = _reason(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _fetch_card(self, peer: int) -> str:
        reader, writer = await asyncio.open_connection(*split_address(self._cluster.addresses[peer]), limit=CARD_BYTES)
        try:
            writer.write(self._hello)
            await writer.drain()
            index, card = _read_hello(await reader.readline())
        finally:
            writer.close()
        if index != peer:
            raise ValueError(f"worker {index} answered")
        return card

    async def _tell_whom_we_wait_for(self) -> None:
        await asyncio.sleep(SILENT_SECONDS)
        print(f"waiting for {'; '.join(self._missing())}", flush=True)

    def _missing(self) -> list[str]:
        """Each worker that has not been met, with what is known about it."""
        unseen = [peer for peer in self._cluster.others if peer not in self._cards]
        silent = [peer for peer in self._cluster.others if peer in self._cards and peer not in self._visitors]
        mine = self._cluster.addresses[self._cluster.index]
        return [f"{self._cluster.name(peer)}: {self._hindrances[peer]}" for peer in unseen] + [
            f"{self._cluster.name(peer)}: it is there but has not reached us at {mine}" for peer in silent
        ]

    def _missed(self, seconds: float) -> RestartMe:
        return RestartMe(
            f"not all workers have come within {seconds:g} s: {'; '.join(self._missing())}. Start all workers, and "
            "check the addresses in TF_CONFIG and the firewall; --wait-for-workers SECONDS waits longer"
        )


def _reason(error: OSError) -> str:
    """What the system calls it; Python adds the address, which we tell by ourselves."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _read_hello(line: bytes) -> tuple[int, str]:
    """Index and card of a worker; ValueError for anything else."""
    value = json.loads(line)
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("worker"), int)
        or not isinstance(value.get("card"), str)
    ):
        raise ValueError("not a worker")
    return value["worker"], value["card"]
