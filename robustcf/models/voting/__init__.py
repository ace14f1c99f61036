"""A recommender by vote, and its certificate against fake accounts.

Every account has a similarity-weighted vote for the items it holds; or hashed groups of accounts
vote. The certificate is proved in :mod:`robustcf.models.voting.certificate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robustcf._lazy import lazy_names

if TYPE_CHECKING:
    from robustcf.models.voting.choosing import ChosenVote, choose
    from robustcf.models.voting.config import VoteConfig
    from robustcf.models.voting.reach import CertifiedReach
    from robustcf.models.voting.vote import CertifiedVotes, PartitionVote
    from robustcf.training.voting import Vote, fit_vote

__all__ = [
    "CertifiedReach",
    "CertifiedVotes",
    "ChosenVote",
    "PartitionVote",
    "Vote",
    "VoteConfig",
    "choose",
    "fit_vote",
]

# Fitting gives a Recommender, and models stand below it.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CertifiedReach": ".reach",
        "CertifiedVotes": ".vote",
        "ChosenVote": ".choosing",
        "PartitionVote": ".vote",
        "Vote": "robustcf.training.voting",
        "VoteConfig": ".config",
        "choose": ".choosing",
        "fit_vote": "robustcf.training.voting",
    },
)
