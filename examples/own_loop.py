"""A plain PyTorch training loop with a network of one's own, and SNTG in three more lines, marked `# sntg`.

    python examples/own_loop.py

Without those three lines this is an ordinary semi-supervised loop: cross-entropy on the few labelled points, and two
noisy passes that should agree. It shows the wiring; what the term gains when its weight is chosen with care is in
docs/synthetic.md.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from torch import nn

from sntg import SNTGLoss  # sntg

EPOCHS = 200

torch.manual_seed(0)
points, classes = make_moons(2000, noise=0.1, random_state=0)
x = torch.tensor(points, dtype=torch.float32)
truth = torch.tensor(classes)
labels = torch.full_like(truth, -1)  # -1: unlabelled
for c in (0, 1):
    labels[(truth == c).nonzero()[:5, 0]] = c

body = nn.Sequential(nn.Linear(2, 100), nn.LeakyReLU(0.1), nn.Linear(100, 100), nn.LeakyReLU(0.1))
head = nn.Linear(100, 2)
optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
smooth_neighbours = SNTGLoss(margin=1.0)  # sntg

for epoch in range(EPOCHS):
    weight = min(1.0, epoch / (EPOCHS / 2))  # the first predictions are no teachers: start slowly
    for rows in torch.randperm(len(x)).split(100):
        features = body(x[rows] + 0.1 * torch.randn(len(rows), 2))
        logits = head(features)
        target = head(body(x[rows] + 0.1 * torch.randn(len(rows), 2))).softmax(-1).detach()
        loss = F.cross_entropy(logits, labels[rows], ignore_index=-1, reduction="sum") / 10
        loss = loss + weight * (logits.softmax(-1) - target).square().mean()
        loss = loss + 0.03 * weight * smooth_neighbours(features, target, labels[rows])  # sntg
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

error = 100 * (head(body(x)).argmax(-1) != truth).float().mean().item()
print(f"error on all points: {error:.2f} %")
