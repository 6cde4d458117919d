"""Shards in actors of Ray, on this machine or on a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray import exceptions

from gdpa.base.checks import check_count, check_limit
from gdpa.sharded.shard import Engine, Recipe, Shard, ShardError, answer, make

#: Larger arguments are put into the object store once, instead of into the message to every actor; Ray's own limit.
LARGE = 100_000


class Ray(Engine):
    """One actor for each shard. An actor that is lost is started again and asked again; its answer has the same bits.

    Args:
        address: of the cluster, as ``ray.init`` takes it. The default None uses the Ray that runs in this program, or
            starts one on this machine.
        restarts: how often each actor is started again, and each question repeated.
        timeout: seconds for the answers to a question; making the shards counts with the first.
        **options: of the actors, such as ``num_cpus=4``, ``num_gpus=1`` or ``memory=4 * 2**30``.
    """

    name = "ray"

    def __init__(self, address: str | None = None, restarts: int = 3, timeout: float = 600.0, **options: Any) -> None:
        check_count(0, restarts=restarts)
        check_limit(timeout=timeout)
        self._address, self._timeout = address, timeout
        self._options = {"max_restarts": restarts, "max_task_retries": restarts} | options
        self._shared: tuple[Any, Any] = (None, None)

    def start(self, recipes: Sequence[Recipe]) -> None:
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address=self._address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        actor = ray.remote(**self._options)(_Holder)
        # Each question comes with its recipe, in a list that Ray leaves as it is: a restarted actor reads it.
        self._recipes = [[ray.put(recipe)] for recipe in recipes]
        self._actors: list[Any] = [actor.remote(index) for index in range(len(recipes))]

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        sent = [self._share(argument) for argument in arguments]
        pairs = zip(self._actors, self._recipes, strict=True)
        answers = [actor.ask.remote(recipe, question, *sent) for actor, recipe in pairs]
        try:
            return ray.get(answers, timeout=self._timeout)
        except exceptions.RayError as error:
            raise self._named(answers, error) from error

    def processes(self) -> list[int]:
        """Return the id of the process of every actor."""
        return ray.get([actor.process.remote() for actor in self._actors])

    def _share(self, argument: Any) -> Any:
        """Return a large array as a reference to the object store, one for all questions at the same point."""
        if getattr(argument, "nbytes", 0) <= LARGE:
            return argument
        if self._shared[0] is not argument:
            self._shared = argument, ray.put(argument)
        return self._shared[1]

    def _named(self, answers: list[Any], error: Exception) -> ShardError:
        """Return an error that names the shard that failed first."""
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
        for index, one in enumerate(answers):
            if one not in ready:
                continue
            try:
                ray.get(one)
            except exceptions.RayTaskError as raised:
                cause = raised.cause
                return cause if isinstance(cause, ShardError) else ShardError(f"shard {index} failed: {cause!r}")
            except exceptions.OutOfMemoryError:
                return ShardError(f"shard {index} was ended for memory; use more shards, or workers with more memory")
            except exceptions.RayError as raised:
                restarts = self._options["max_restarts"]
                return ShardError(
                    f"the worker of shard {index} was lost and {restarts} restarts did not help "
                    f"({type(raised).__name__}); look at its memory, use more shards, or raise restarts"
                )
        late = [index for index, one in enumerate(answers) if one not in ready]
        return ShardError(
            f"shard {late[0] if late else 0} gave no answer within {self._timeout:g} s ({type(error).__name__}); "
            f"raise timeout of gdpa.sharded.Ray, use more shards, or give the cluster room for {len(answers)} actors"
        )


class _Holder:
    """The actor: makes its shard when it is asked first, and again after a restart."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._shard: Shard | None = None

    def ask(self, recipe: list[Any], question: str, *arguments: Any) -> Any:
        if self._shard is None:
            self._shard = make(ray.get(recipe[0]), self._index)
        return answer(self._shard, self._index, question, *arguments)

    def process(self) -> int:
        return os.getpid()
