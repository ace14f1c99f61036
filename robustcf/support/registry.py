"""All tables of names, in one place that imports nothing: a new name is one new line here.

A class is imported when its name is asked for, so that the command line can list the choices
without loading torch. Code outside of the package adds to a table without touching it, see
:mod:`robustcf.support.tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robustcf.support.tables import Table

if TYPE_CHECKING:
    from robustcf.attacks.base import Attack
    from robustcf.models.base import Model
    from robustcf.objectives.base import Objective
    from robustcf.poisoning.base import Poisoning
    from robustcf.poisoning.defences.base import Defence
    from robustcf.recommender.scorer import Scorer
    from robustcf.regularizers import Regularizer
    from robustcf.training.adversarial import Adversary

#: Kinds of recommenders: what scores.
SCORERS: Table[Scorer] = Table(
    "scorer",
    {
        "factors": "robustcf.recommender.factorized:FactorScorer",
        "vote": "robustcf.voting.vote:PartitionVote",
    },
    "robustcf.recommender.scorer:Scorer",
)
MODELS: Table[Model[Any]] = Table(
    "model",
    {
        "ultragcn": "robustcf.models.ultragcn:UltraGCN",
        "bpr-mf": "robustcf.models.bprmf:BPRMF",
        "lightgcn": "robustcf.models.lightgcn:LightGCN",
        "softmax-mf": "robustcf.models.softmaxmf:SoftmaxMF",
        "als": "robustcf.models.als:ALS",
        "ease": "robustcf.models.ease:EASE",
        "popularity": "robustcf.models.popularity:Popularity",
    },
    "robustcf.models.base:Model",
)
#: Models that no loop trains: what fits them to a split.
FITTERS: Table[Any] = Table(
    "model", {"vote": "robustcf.voting.fitting:fit_vote"}, "builtins:object"
)
#: What ``fit`` of a model calls: models stand below training, and do not import it.
TRAINING: Table[Any] = Table(
    "step of training",
    {
        "config": "robustcf.training.front:model_config",
        "fit": "robustcf.training.front:train",
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
        "pgd": "robustcf.attacks.gradient:PGD",
        "random": "robustcf.attacks.noise:RandomNoise",
    },
    "robustcf.attacks.base:Attack",
)
#: Ways to choose the profiles of fake users; :mod:`robustcf.poisoning.auto` takes the worst.
POISONINGS: Table[Poisoning] = Table(
    "poisoning",
    {
        "random": "robustcf.poisoning.random_items:RandomItems",
        "bandwagon": "robustcf.poisoning.bandwagon:Bandwagon",
        "copy": "robustcf.poisoning.copied:CopiedProfiles",
        "surrogate": "robustcf.poisoning.surrogate:Surrogate",
        "greedy": "robustcf.poisoning.greedy:Greedy",
    },
    "robustcf.poisoning.base:Poisoning",
)
#: What a victim does about fake users before or in training; ``none`` is the absence of one.
DEFENCES: Table[Defence] = Table(
    "defence",
    {
        "pca": "robustcf.poisoning.defences.pca:PCASelection",
        "twins": "robustcf.poisoning.defences.twins:Twins",
        "groups": "robustcf.poisoning.defences.groups:Groups",
        "detect": "robustcf.poisoning.defences.combined:AllDetectors",
        "leverage": "robustcf.poisoning.defences.leverage:LeverageCap",
        "adversarial-loss": "robustcf.poisoning.defences.adversarial:SizeByLoss",
        "adversarial-norm": "robustcf.poisoning.defences.adversarial:SizeByNorm",
    },
    "robustcf.poisoning.defences.base:Defence",
)
