"""Predictors, from prompts to beliefs about their success. Each has one line in ``PREDICTORS``."""

from apportion.predictors.base import Predictor
from apportion.predictors.counts import DiscountedCounts
from apportion.predictors.embeddings import EMBEDDERS, Embedder, PrecomputedEmbeddings, SentenceTransformerEmbedder
from apportion.predictors.empirical_bayes import EmpiricalBayes
from apportion.predictors.gp import GaussianProcess, GradedGaussianProcess
from apportion.predictors.lengths import MeanLengths
from apportion.predictors.moving_average import MovingAverage
from apportion.predictors.running_variance import RunningVariance
from apportion.predictors.score_moments import ScoreMoments
from apportion.predictors.shuffled import Shuffled
from apportion.predictors.uniform import UniformPrior

PREDICTORS: dict[str, type[Predictor]] = {
    predictor.name: predictor
    for predictor in (
        UniformPrior,
        DiscountedCounts,
        EmpiricalBayes,
        MovingAverage,
        GaussianProcess,
        RunningVariance,
        GradedGaussianProcess,
        ScoreMoments,
        Shuffled,
    )
}
"""Every predictor by name."""

__all__ = [
    "EMBEDDERS",
    "PREDICTORS",
    "DiscountedCounts",
    "Embedder",
    "EmpiricalBayes",
    "GaussianProcess",
    "GradedGaussianProcess",
    "MeanLengths",
    "MovingAverage",
    "PrecomputedEmbeddings",
    "Predictor",
    "RunningVariance",
    "ScoreMoments",
    "SentenceTransformerEmbedder",
    "Shuffled",
    "UniformPrior",
]
