"""What the paper's equations say, in float64 NumPy with loops and gradients derived by hand.

Nothing here imports torch or sntg: where a test finds both sides equal, two independent derivations agree.
"""

import itertools
import math

import numpy as np

# ------------------------------------------------------------------------------------------------ graphs and pairs


def merged_classes(classes, labels):
    """RECIPES.md, "merge": the true label where known (>= 0), else the teacher's class."""
    return np.array([y if y >= 0 else c for c, y in zip(classes, labels, strict=True)])


def merged_probabilities(p, labels):
    """The soft graph's "merge": a known label is a distribution that is certain of it."""
    return np.array([np.eye(p.shape[1])[y] if y >= 0 else row for row, y in zip(p, labels, strict=True)])


def hard_graph(classes):
    """Eq. 6 as a dense matrix: W_ij = 1 if the hard targets of i and j are equal, else 0."""
    n = len(classes)
    return np.array([[float(classes[i] == classes[j]) for j in range(n)] for i in range(n)])


def kl(p, q):
    """KL(p || q) of two distributions, with 0 log 0 = 0 and infinity where q misses what p believes in."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0:
            total += math.inf if b == 0 else a * math.log(a / b)
    return total


def soft_graph(p, temperature):
    """The soft graph as a dense matrix: W_ij = exp(-(KL(p_i||p_j) + KL(p_j||p_i)) / T).

    A logarithm sees no less than float32's smallest normal number: a certain prediction is not infinitely far away.
    """
    n = len(p)

    def kl(a, b):
        floor = float(np.finfo(np.float32).tiny)
        return sum(u * (math.log(max(u, floor)) - math.log(max(v, floor))) for u, v in zip(a, b, strict=True))

    return np.array([[math.exp(-(kl(p[i], p[j]) + kl(p[j], p[i])) / temperature) for j in range(n)] for i in range(n)])


def knn_graph(points, k):
    """EmbedNN's graph (Sec. 5.3), dense: W_ij = 1 if j is one of the k points nearest to i, or i one of j's."""
    points = np.asarray(points, dtype=np.float64).reshape(len(points), -1)
    W = np.zeros((len(points), len(points)))
    for i, point in enumerate(points):
        squared = ((points - point) ** 2).sum(1)
        squared[i] = np.inf
        W[i, np.argsort(squared)[:k]] = 1.0
    return np.maximum(W, W.T)


def half_pairs(n):
    """RECIPES.md: row i with row i + n/2 of the shuffled batch; the last row of an odd batch has no partner."""
    return [(i, i + n // 2) for i in range(n // 2)]


def all_pairs(n):
    """Every ordered pair i != j of the batch, the full sum of Eq. 7."""
    return list(itertools.permutations(range(n), 2))


# ------------------------------------------------------------------------------------------------------ graph loss


def sntg(h, W, pairs, margin=1.0):
    """Eq. 7 and 8 over given pairs, with d^2 a mean over the p features (RECIPES.md): (value, gradient in h).

    l_G = W d^2 + (1 - W) max(0, m - d)^2. In h_i, with u = h_i - h_j: d^2 has the gradient 2u/p and d has u/(p d), so
    l_G has 2u/p [W - (1 - W) max(0, m - d)/d]; in h_j the opposite. At d = 0 there is no direction: 0.
    """
    h = np.asarray(h, dtype=np.float64)
    value, gradient = 0.0, np.zeros_like(h)
    for i, j in pairs:
        u = h[i] - h[j]
        squared = (u**2).mean()
        d = math.sqrt(squared)
        gap = max(0.0, margin - d)
        value += W[i, j] * squared + (1 - W[i, j]) * gap**2
        if d > 0:
            in_h_i = 2 * u / h.shape[1] * (W[i, j] - (1 - W[i, j]) * gap / d)
            gradient[i] += in_h_i
            gradient[j] -= in_h_i
    return value / len(pairs), gradient / len(pairs)


# ---------------------------------------------------------------------------------------------------- other losses


def log_softmax(z):
    """log of exp(z_k) / sum_l exp(z_l), row by row."""
    z = np.asarray(z, dtype=np.float64)
    shifted = z - z.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def softmax(z):
    """exp(z_k) / sum_l exp(z_l), row by row."""
    return np.exp(log_softmax(z))


def through_softmax(p, gradient):
    """The gradient in logits of something whose gradient in p = softmax(z) is given: p (g - <p, g>)."""
    return p * (gradient - (p * gradient).sum(-1, keepdims=True))


def cross_entropy(z, y):
    """Alg. 1, first term: -1/|B| sum over the labelled of log f_y: (value, gradient in z). -1 is unlabelled."""
    n, log_p = len(z), log_softmax(z)
    value, gradient = 0.0, np.zeros_like(log_p)
    for i in range(n):
        if y[i] >= 0:
            value -= log_p[i, y[i]] / n
            gradient[i] = (np.exp(log_p[i]) - np.eye(z.shape[1])[y[i]]) / n
    return value, gradient


def consistency_mse(z, target, known=None):
    """Eq. 2 with d the squared difference over n and K (RECIPES.md): (value, gradient in z, gradient in target).

    With p = softmax(z): the gradient in p is 2 (p - t) / (n K), in t the opposite.
    """
    n, K = z.shape
    weight = np.ones(n) if known is None else np.asarray(known, dtype=np.float64)
    p = softmax(z)
    value = (weight[:, None] * (p - target) ** 2).sum() / (n * K)
    in_p = 2 * weight[:, None] * (p - target) / (n * K)
    return value, through_softmax(p, in_p), -in_p


def consistency_kl(z, target, known=None):
    """Eq. 5 (VAT's divergence) for a given target: mean over n of KL(t || p): (value, gradient in z, in target).

    In z: p sum(t) - t. In t: log t + 1 - log p where t > 0 (elsewhere the derivative is infinite: NaN here).
    """
    n = len(z)
    weight = np.ones(n) if known is None else np.asarray(known, dtype=np.float64)
    log_p = log_softmax(z)
    value = sum(weight[i] * kl(target[i], np.exp(log_p[i])) for i in range(n)) / n
    in_z = weight[:, None] * (np.exp(log_p) * target.sum(-1, keepdims=True) - target) / n
    log_t = np.log(np.where(target > 0, target, np.nan))
    return value, in_z, weight[:, None] * (log_t + 1 - log_p) / n


def entropy(z):
    """H(p(y|x)) = -sum_k p_k log p_k, a mean over the rows: (value, gradient in z = -p (log p + H))."""
    log_p = log_softmax(z)
    p = np.exp(log_p)
    H = -(p * log_p).sum(-1, keepdims=True)
    return H.mean(), -p * (log_p + H) / len(z)


# ----------------------------------------------------------------------------------------------------- adversarial


def softmax_covariance(z):
    """diag(p) - p p^T for p = softmax(z), one row: the Hessian of KL(p || softmax(z + .)) at 0."""
    p = softmax(z)
    return np.diag(p) - np.outer(p, p)


def linear_hessian(A, x):
    """H = A^T (diag p - p p^T) A: the Hessian in r of KL(p(x) || p(x + r)) at r = 0 for the logits z = A x."""
    return A.T @ softmax_covariance(A @ x) @ A


def unit(d):
    """RECIPES.md: divide by max|d| + 1e-12, then by sqrt(1e-6 + sum d^2); one input, any shape."""
    d = np.asarray(d, dtype=np.float64)
    d = d / (np.abs(d).max() + 1e-12)
    return d / math.sqrt(1e-6 + (d**2).sum())


# ------------------------------------------------------------------------------------------------ ramps and optimiser


def ramp_up(e):
    """RECIPES.md: exp(-5 (1 - e/80)^2) for e < 80, then 1."""
    return math.exp(-5 * (1 - e / 80) ** 2) if e < 80 else 1.0


def ramp_down(e):
    """RECIPES.md: exp(-12.5 ((e - 250)/50)^2) for e >= 250, of 300 epochs; before that 1."""
    return math.exp(-12.5 * ((e - 250) / 50) ** 2) if e >= 250 else 1.0


def ramp_down_of_the_text(t):
    """The paper's Appendix A: exp[-12.5 (1 - (300 - t)/50)^2] during the last 50 epochs."""
    return math.exp(-12.5 * (1 - (300 - t) / 50) ** 2)


class Adam:
    """RECIPES.md: eps added to the root of the uncorrected v, step lr sqrt(1-b2^t)/(1-b1^t) with the current b1."""

    def __init__(self, theta, beta2=0.999, eps=1e-8):
        self.theta = np.array(theta, dtype=np.float64)
        self.m = np.zeros_like(self.theta)
        self.v = np.zeros_like(self.theta)
        self.beta2, self.eps, self.t = beta2, eps, 0

    def step(self, gradient, lr, beta1):
        self.t += 1
        self.m = beta1 * self.m + (1 - beta1) * gradient
        self.v = self.beta2 * self.v + (1 - self.beta2) * gradient**2
        size = lr * math.sqrt(1 - self.beta2**self.t) / (1 - beta1**self.t)
        self.theta = self.theta - size * self.m / (np.sqrt(self.v) + self.eps)
