# SPDX-License-Identifier: Apache-2.0
"""GRPO from responses that another policy sampled, corrected by weft.correction.

The sampler is the policy with noise on its weights, as a compressed cache or a quantised engine has. Tokens that it
says and the policy would not are weighed down, and responses that the policy would never give are rejected.
"""

from typing import Tuple

import torch
import weft.correction
from llama import CONFIG, Llama

GROUP, LENGTH, STEPS = 16, 8, 30


def log_probabilities(policy: Llama, tokens: torch.Tensor) -> torch.Tensor:
    return policy(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def sample(policy: Llama) -> Tuple[torch.Tensor, torch.Tensor]:
    """Responses to one prompt, and which of their tokens count: those up to the first 0."""
    tokens = torch.ones(GROUP, 1, dtype=torch.long)
    for _ in range(LENGTH):
        tokens = torch.cat((tokens, torch.multinomial(policy(tokens)[:, -1].softmax(-1), 1)), 1)
    ended = (tokens[:, 1:] == 0).cumsum(1)
    return tokens, (ended == 0) | ((tokens[:, 1:] == 0) & (ended == 1))


torch.manual_seed(7)
torch.set_num_threads(1)
policy, noisy = Llama(), Llama()
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)
options = weft.correction.from_verl("token", 2.0, rollout_rs="seq_max_k3", rollout_rs_threshold=0.05)
history = []
for step in range(STEPS):
    with torch.no_grad():
        for quiet, loud in zip(policy.parameters(), noisy.parameters()):
            loud.copy_(quiet + 0.02 * torch.randn_like(quiet))
        tokens, mask = sample(noisy)
        sampler, old = log_probabilities(noisy, tokens), log_probabilities(policy, tokens)
    small = (tokens[:, 1:] < CONFIG["vocab_size"] // 2) & mask  # these are good
    rewards = small.sum(1) / mask.sum(1)
    found = weft.correction.weigh(None, sampler, old, options, mask=mask)
    advantages = weft.correction.advantages(rewards, group=GROUP, rejected=found.left_out)
    learner = log_probabilities(policy, tokens)
    made = weft.correction.objective(None, old, learner, advantages, weights=found.weights, mask=found.kept)
    if step == 0:  # the slopes are those that torch finds for the same loss
        ratio = (learner - old).exp()
        gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.28) * advantages[:, None]) * found.weights
        loss = -((gain * found.kept).sum(1) / found.kept.sum(1).clamp(min=1)).mean()
        assert torch.allclose(torch.autograd.grad(loss, learner, retain_graph=True)[0], made.slopes, atol=1e-6)
    if made.moves:
        optimizer.zero_grad()
        learner.backward(made.slopes)
        optimizer.step()
    history.append(rewards.mean().item())
    print(f"step {step}: reward {history[-1]:.3f}, {found.diagnostics.rejected} of {GROUP} responses rejected")
assert sum(history[-5:]) > sum(history[:5]) + 1
