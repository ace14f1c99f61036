"""All tables of names, in one place that imports nothing: a new name is one new line here.

A class is imported when its name is asked for, so the command line lists the choices without
loading torch. A name is an entry of the table; ``module:Class``, a class of the reader's own; or an
entry point of the table's group, which an installed package declares::

    [project.entry-points."robustcf.models"]
    mine = "my_module:MyModel"
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from robustcf._checks import near
from robustcf._io.schema import shown
from robustcf.errors import InputError

if TYPE_CHECKING:
    from robustcf.attacks.base import Attack
    from robustcf.models.base import Model
    from robustcf.models.scorer import Scorer
    from robustcf.objectives.base import Objective
    from robustcf.poisoning.base import Poisoning
    from robustcf.poisoning.defences.base import Defence
    from robustcf.regularizers import Regularizer
    from robustcf.training.adversarial import Adversary


Entry = TypeVar("Entry")


class Table(Generic[Entry]):
    """Names -> classes of one kind, imported when they are asked for.

    Args:
        kind: what the entries are, in a word: ``model``.
        entries: name -> ``module:Class``.
        base: what a class from outside must derive from, ``module:Class`` too.

    Example:
        >>> table: Table[int] = Table("number", {"whole": "builtins:int"}, "builtins:object")
        >>> table["whole"], list(table)
        (<class 'int'>, ['whole'])
        >>> table["fractions:Fraction"]
        <class 'fractions.Fraction'>
        >>> table["hole"]
        Traceback (most recent call last):
        robustcf.errors.InputError: number must be one of whole, or module:Class, got 'hole'; did
        you mean 'whole'?
    """

    def __init__(self, kind: str, entries: Mapping[str, str], base: str) -> None:
        self.kind, self._base = kind, base
        self._entries = dict(entries)

    @property
    def group(self) -> str:
        """The group of entry points that adds to this table."""
        return f"robustcf.{self.kind}s"

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def __getitem__(self, name: str) -> type[Entry]:
        """The class of a name; code from outside is imported here, and nowhere else."""
        if name in self:
            found: type[Entry] = _imported(self.kind, self._entries[name])
            return found
        if isinstance(name, str) and ":" in name:
            # A command's own folder comes first on sys.path; the user's module lies elsewhere.
            if os.getcwd() not in sys.path and "" not in sys.path:
                sys.path.append(os.getcwd())
            return self._checked(name, _imported(self.kind, name))
        for point in entry_points(group=self.group):
            if point.name == name:
                try:
                    return self._checked(name, point.load())
                except (ImportError, SyntaxError, AttributeError) as error:
                    raise InputError(
                        f"{self.kind} {name!r} of an installed package cannot be imported "
                        f"({error}): repair that package, or uninstall it"
                    ) from error
        other = meant(name) if isinstance(name, str) else None
        hint = f"; did you mean {other!r}?" if other else near(name, self._entries)
        raise InputError(
            f"{self.kind} must be one of {', '.join(self._entries)}, or module:Class, got "
            f"{shown(name)}{hint}"
        )

    def _checked(self, name: str, found: object) -> type[Entry]:
        base = _imported(self.kind, self._base)
        if not isinstance(found, type) or not issubclass(found, base):
            raise InputError(
                f"{name} must be a subclass of {base.__module__}.{base.__name__} to serve as a "
                f"{self.kind}, got {found!r}"
            )
        return found


def meant(name: str) -> str | None:
    """Return ``module:Class`` for a name that was spelled in another way, or None.

    Example:
        >>> meant("my_module.MyModel"), meant("my_module.py:MyModel"), meant("bpr")
        ('my_module:MyModel', 'my_module:MyModel', None)
    """
    module, colon, attribute = name.partition(":")
    if colon and module.endswith(".py"):
        module = ".".join(part for part in re.split(r"[/\\\\]", module[:-3]) if part.strip("."))
    elif not colon:
        module, _, attribute = name.rpartition(".")
    else:
        return None
    words = [*module.split("."), attribute]
    good = all(word.isidentifier() for word in words) and attribute != "py"
    return f"{module}:{attribute}" if good else None


def _imported(kind: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    refused, other = f"{kind} {name!r} cannot be imported", meant(name)
    if other is not None or not module:
        hint = f"; did you mean {other}?" if other else ""
        raise InputError(f"{refused}: give module:Class{hint}")
    try:
        found = importlib.import_module(module)
    except SyntaxError as error:
        place = f" ({error.filename}, line {error.lineno})" if error.filename else ""
        raise InputError(f"{refused}: there is a syntax error in it{place}: {error.msg}") from error
    except ImportError as error:
        top, dot, _ = module.partition(".")
        place = f"the folder that the package {top} is in" if dot else f"the folder of {top}.py"
        advice = f"run from {place}, or set PYTHONPATH"
        # Its own name, or that of a package it is in: else it is something that it imports.
        if type(error) is ImportError or not f"{module}.".startswith(f"{error.name}."):
            advice = f"{module} is there, but something that it imports is not; install that"
        raise InputError(f"{refused} ({error}): {advice}") from error
    try:
        return getattr(found, attribute)
    except AttributeError as error:
        raise InputError(f"{module} has no {attribute!r}: give module:Class") from error


#: Kinds of recommenders: what scores.
SCORERS: Table[Scorer] = Table(
    "scorer",
    {
        "factors": "robustcf.models.factorized:FactorScorer",
        "fold-in": "robustcf.models.factorized:FoldedScorer",
        "item-item": "robustcf.models.item_item:ItemItemScorer",
        "ensemble": "robustcf.models.ensemble:EnsembleScorer",
        "vote": "robustcf.models.voting.vote:PartitionVote",
    },
    "robustcf.models.scorer:Scorer",
)
MODELS: Table[Model[Any]] = Table(
    "model",
    {
        "ultragcn": "robustcf.models.factorizations:UltraGCN",
        "bpr-mf": "robustcf.models.factorizations:BPRMF",
        "lightgcn": "robustcf.models.lightgcn:LightGCN",
        "softmax-mf": "robustcf.models.factorizations:SoftmaxMF",
        "als": "robustcf.models.als:ALS",
        "ease": "robustcf.models.ease:EASE",
        "sparse-ease": "robustcf.models.neighbours:SparseEASE",
        "item-knn": "robustcf.models.neighbours:ItemKNN",
        "graph-filter": "robustcf.models.neighbours:GraphFilter",
        "ensemble": "robustcf.models.ensemble:Ensemble",
        "popularity": "robustcf.models.popularity:Popularity",
    },
    "robustcf.models.base:Model",
)
#: Models that no loop trains: what fits them to a split.
FITTERS: Table[Any] = Table(
    "model", {"vote": "robustcf.training.voting:fit_vote"}, "builtins:object"
)
#: What ``fit`` of a model calls: models stand below training, and do not import it.
TRAINING: Table[Any] = Table(
    "step of training",
    {
        "config": "robustcf.training.front:model_config",
        "fit": "robustcf.training.front:train",
        "scorer": "robustcf.training.fitting:fit_scorer",
        # Training stands below attacks on recommenders, too.
        "frontier": "robustcf.experiments.frontier:frontier",
    },
    "builtins:object",
)
OBJECTIVES: Table[Objective[Any]] = Table(
    "objective",
    {
        "bce": "robustcf.objectives.bce:BCE",
        "bpr": "robustcf.objectives.bpr:BPR",
        "softmax": "robustcf.objectives.softmax:Softmax",
    },
    "robustcf.objectives.base:Objective",
)
REGULARIZERS: Table[Regularizer] = Table(
    "regularizer",
    {
        "none": "robustcf.regularizers:NoPenalty",
        "weight_decay": "robustcf.regularizers:WeightDecay",
        "two_to_inf": "robustcf.regularizers:TwoToInf",
        "max_norm": "robustcf.regularizers:MaxNorm",
        "degree_decay": "robustcf.regularizers:DegreeDecay",
    },
    "robustcf.regularizers:Regularizer",
)
ADVERSARIES: Table[Adversary] = Table(
    "adversary",
    {
        "none": "robustcf.training.adversarial:NoAdversary",
        "bpr": "robustcf.training.adversarial:AttackBPR",
        "bce": "robustcf.training.adversarial:AttackBCE",
        "softmax": "robustcf.training.adversarial:AttackSoftmax",
        "margin": "robustcf.training.adversarial:Margin",
    },
    "robustcf.training.adversarial:Adversary",
)
#: Ways to spend a budget; :mod:`robustcf.robustness.table` has how results are made of them.
ATTACKS: Table[Attack] = Table(
    "attack",
    {
        "cutoff": "robustcf.attacks.cutoff:Cutoff",
        "fgm": "robustcf.attacks.gradient:FGM",
        "pairwise": "robustcf.attacks.pairwise:Pairwise",
        "pgd": "robustcf.attacks.gradient:PGD",
        "random": "robustcf.attacks.noise:RandomNoise",
    },
    "robustcf.attacks.base:Attack",
)
#: Ways to choose the profiles of fake users; :func:`robustcf.poisoning.strongest` takes the worst.
POISONINGS: Table[Poisoning] = Table(
    "poisoning",
    {
        "random": "robustcf.poisoning.heuristic:RandomItems",
        "bandwagon": "robustcf.poisoning.heuristic:Bandwagon",
        "copy": "robustcf.poisoning.heuristic:CopiedProfiles",
        "surrogate": "robustcf.poisoning.surrogate:Surrogate",
        "greedy": "robustcf.poisoning.surrogate:Greedy",
        "adaptive": "robustcf.poisoning.adaptive:Adaptive",
    },
    "robustcf.poisoning.base:Poisoning",
)
#: What a victim does about fake users before or in training; ``none`` is the absence of one.
DEFENCES: Table[Defence] = Table(
    "defence",
    {
        "pca": "robustcf.poisoning.defences.detectors:PCASelection",
        "twins": "robustcf.poisoning.defences.detectors:Twins",
        "groups": "robustcf.poisoning.defences.detectors:Groups",
        "detect": "robustcf.poisoning.defences.detectors:AllDetectors",
        "leverage": "robustcf.poisoning.defences.training:LeverageCap",
        "adversarial-loss": "robustcf.poisoning.defences.training:SizeByLoss",
        "adversarial-norm": "robustcf.poisoning.defences.training:SizeByNorm",
    },
    "robustcf.poisoning.defences.base:Defence",
)
