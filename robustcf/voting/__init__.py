"""A recommender by vote, and what fake accounts cannot take from it.

Every account votes for the items it holds, by how alike it is to the served user; or hashed groups
of accounts vote. The certificate is proved in :mod:`robustcf.certificates.votes`.
"""

from robustcf.voting.choosing import ChosenVote, choose
from robustcf.voting.config import VoteConfig
from robustcf.voting.fitting import Vote, fit_vote
from robustcf.voting.vote import CertifiedVotes, PartitionVote

__all__ = [
    "CertifiedVotes",
    "ChosenVote",
    "PartitionVote",
    "Vote",
    "VoteConfig",
    "choose",
    "fit_vote",
]
