"""Who answered: the client's, the router's and the engines' counts."""

from __future__ import annotations

from typing import Any, Iterable


def count_pods(requests: Iterable[dict[str, Any]],
               pods: dict[str, str]) -> dict[str, int]:
    """Completions that the client saw end, by engine; others under `?`."""
    names = {pod: name for name, pod in pods.items()}
    counts = {name: 0 for name in pods}
    for request in requests:
        if request["status"] == 200 and request["done"]:
            name = names.get(request["pod"], "?")
            counts[name] = counts.get(name, 0) + 1
    return counts


def grown(old: dict[str, Any] | None, new: dict[str, Any] | None,
          field: str) -> int | None:
    """How a counter grew; None when a reading is missing."""
    if old is None or new is None or None in (old[field], new[field]):
        return None
    return new[field] - old[field]


def engine_delta(before: dict[str, Any], after: dict[str, Any],
                 field: str) -> dict[str, int | None]:
    """How a counter of each engine grew; None where it could not be read."""
    return {name: grown(before["engines"][name], after["engines"][name],
                        field) for name in before["engines"]}


def router_delta(before: dict[str, Any], after: dict[str, Any],
                 field: str) -> dict[str, int] | None:
    """How the router's counter grew by label, without what did not grow."""
    if before["router"] is None or after["router"] is None \
            or after["router"][field] is None:
        return None
    # a counter without samples has counted nothing yet
    old, new = before["router"][field] or {}, after["router"][field]
    deltas = {key: new[key] - old.get(key, 0) for key in new}
    return {key: delta for key, delta in deltas.items() if delta}


def cross_check(requests: Iterable[dict[str, Any]], pods: dict[str, str],
                before: dict[str, Any],
                after: dict[str, Any]) -> dict[str, Any]:
    """The three counts by engine and whether all that could be read agree."""
    client = count_pods(requests, pods)
    engine = engine_delta(before, after, "finished")
    by_pod = router_delta(before, after, "requests")
    router = None
    if by_pod is not None:
        router = {name: by_pod.pop(pod, 0) for name, pod in pods.items()}
        if by_pod:
            router["?"] = sum(by_pod.values())
    agree = ((router is None or router == client)
             and "?" not in client
             and all(engine[n] in (None, client[n]) for n in pods))
    return {"client": client, "router": router, "engine": engine,
            "agree": agree}
