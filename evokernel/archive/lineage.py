"""Lineage: how a kernel came about, as a networkx DAG from its first drafts down to it.

Nodes are kernel ids with `task` (name or None), `speedup_low` and `fitness` (None where unverified), and whether these are `forced`. Edges run from
parent to child with `operator`, `model` (None without one) and `gain`: child's minus parent's lower bound of log speedup, both on one task in one
place under one set of rules and versions, None where they share none. What was measured here comes before what was imported, what was judged by force
after what was not, then the fastest first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx

from ..errors import UsageError
from ..records import Status
from .database import Database
from .verdicts import PROVEN

_ANCESTORS = (
    "WITH RECURSIVE line(id) AS (SELECT ? UNION SELECT e.parent FROM edges e JOIN line ON e.child = line.id) "
    "SELECT e.child, e.parent, a.operator, a.model FROM line JOIN edges e ON e.child = line.id LEFT JOIN attempts a ON a.seq = e.attempt"
)
_VERIFIED = (
    "SELECT t.name, max(v.speedup_low), v.task_id, v.device, b.architecture, b.compiler, v.protocol, v.versions, v.imported, "
    f"NOT {PROVEN.format('v')} FROM verdicts v "
    "JOIN builds b ON b.id = v.build_id JOIN tasks t ON t.id = v.task_id "
    f"WHERE b.kernel_id = ? AND v.status = '{Status.VERIFIED}' GROUP BY 3, 4, 5, 6, 7, 8, 9, 10 ORDER BY 9, 10, 2 DESC, v.seq"
)


@dataclass(frozen=True)
class Step:
    """One step of the way to a kernel: what made it (`draft` for the first), its speedup there and what the step gained (None: not measured).
    `forced`: the speedup is one by force."""

    kernel_id: str
    operator: str
    speedup_low: float | None
    gain: float | None
    forced: bool


def graph(database: Database, kernel_id: str) -> nx.DiGraph:
    """The kernel and all its ancestors.

    Raises:
        UsageError: no such kernel.
    """
    if database.row("SELECT 1 FROM kernels WHERE id = ?", kernel_id) is None:
        raise UsageError(f"there is no kernel {kernel_id} in {database.path}")
    dag = nx.DiGraph()
    edges = database.rows(_ANCESTORS, kernel_id)
    measured = {node: _measured(database, node) for node in dict.fromkeys([kernel_id, *(e["parent"] for e in edges)])}
    for node, (task, places) in measured.items():
        place, low = next(iter(places.items()), ((False,), None))
        dag.add_node(node, task=task, speedup_low=low, fitness=_log(low), forced=bool(place[-1]))
    for edge in edges:
        gain = _gain(measured[edge["parent"]][1], measured[edge["child"]][1])
        dag.add_edge(edge["parent"], edge["child"], operator=edge["operator"] or "imported", model=edge["model"], gain=gain)
    return dag


def path(dag: nx.DiGraph, kernel_id: str) -> list[Step]:
    """The main line from the first draft to the kernel: at each step the fastest parent."""
    line = [kernel_id]
    while parents := sorted(dag.predecessors(line[-1])):
        line.append(max(parents, key=lambda p: -math.inf if dag.nodes[p]["fitness"] is None else dag.nodes[p]["fitness"]))
    line.reverse()
    steps = [Step(line[0], "draft", dag.nodes[line[0]]["speedup_low"], None, dag.nodes[line[0]]["forced"])]
    for parent, child in pairwise(line):
        edge = dag.edges[parent, child]
        steps.append(Step(child, edge["operator"], dag.nodes[child]["speedup_low"], edge["gain"], dag.nodes[child]["forced"]))
    return steps


def dot(dag: nx.DiGraph) -> str:
    """The graph in Graphviz's language: kernels with their speedups (lower bounds), edges with operator and gain."""
    lines = ["digraph lineage {", "  node [shape=box];"]
    for node, facts in dag.nodes(data=True):
        low = facts["speedup_low"]
        gained = "not verified" if low is None else f"{low:.3f}x{' by force' * facts['forced']}"
        label = "\\n".join([node[:8], *([_quoted(facts["task"])] if facts["task"] else []), gained])
        lines.append(f'  "{node}" [label="{label}"];')
    for parent, child, facts in dag.edges(data=True):
        gain = "" if facts["gain"] is None else f" {math.exp(facts['gain']):.3f}x"
        lines.append(f'  "{parent}" -> "{child}" [label="{_quoted(facts["operator"])}{gain}"];')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')


Places = dict[tuple[object, ...], float]  # where it was measured, under which rules -> lower bound of the speedup, the one that says most first


def _measured(database: Database, kernel_id: str) -> tuple[str | None, Places]:
    rows = database.rows(_VERIFIED, kernel_id)
    return (rows[0]["name"] if rows else None), {tuple(row)[2:]: row[1] for row in rows}


def _gain(parent: Places, child: Places) -> float | None:
    place = next((p for p in child if p in parent), None)
    if place is None or min(parent[place], child[place]) <= 0:
        return None
    return math.log(child[place]) - math.log(parent[place])


def _log(low: float | None) -> float | None:
    return math.log(low) if low is not None and low > 0 else None
