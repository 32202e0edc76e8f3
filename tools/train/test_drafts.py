"""Unit tests of the drafts.

    python -m unittest test_drafts

QWEN_GOLDEN=FOLDER and KIMI_GOLDEN=FOLDER add comparisons with reference
checkpoints (target/, draft/, golden.json, golden.safetensors).
"""

import json
import os
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

import draft_export
from dflash_model import DFlash2
from draft_blocks import Draft
from draft_config import dflash_config, dspark_config
from draft_train import Text, accepted, blocks_of, make_optimizers, steps_needed
from dspark_model import DSpark

LARGEST_FILE = 6_000_000
TAPS = 3
TOLERANCE = 1e-4


def new_drafts(vocabulary: int, window: int = 256) -> list[Draft]:
    """A draft of each kind for targets of some vocabulary, otherwise in their own shapes."""
    torch.manual_seed(4)
    target = {"vocab_size": vocabulary, "hidden_size": 256, "num_hidden_layers": 8, "max_position_embeddings": 4096,
              "eos_token_id": 0}
    flash, spark = dflash_config(target, vocabulary - 1), dspark_config(target, vocabulary - 1)
    flash["sliding_window"] = spark["transformer_layer_config"]["sliding_window"] = window
    words = torch.randn(2, vocabulary, target["hidden_size"])
    return [DFlash2(flash, *words), DSpark(spark, *words)]


def random_drafts() -> list[Draft]:
    """Drafts of few words and a short window in which every weight is random."""
    drafts = new_drafts(64, window=20)
    for draft in drafts:
        for p in draft.parameters():
            torch.nn.init.normal_(p, std=0.2)
    return drafts


def config_of(draft: Draft) -> dict:
    """config.json of a new draft with the mask's token at the end."""
    make = dflash_config if isinstance(draft, DFlash2) else dspark_config
    return make({**draft.c, "num_hidden_layers": 8, "eos_token_id": 0}, draft.mask)


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference."""
    return (a - b).abs().max().item()


class Visibility(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.taps, self.anchors = torch.randn(1, 40, TAPS * 256), torch.tensor([[5, 12, 33]])
        self.first = torch.tensor([[3, 1, 2]])

    @torch.no_grad()
    def change(self, draft: Draft, position: int) -> list[bool]:
        """For each block whether the taps of a position have a part in it."""
        embedding = torch.randn(64, 256, generator=torch.Generator().manual_seed(6))
        other = self.taps.clone()
        other[0, position] += 1.0
        before, after = (draft.hidden(embedding, taps, self.anchors, self.first) for taps in (self.taps, other))
        return [largest(a, b) > 0.0 for a, b in zip(before[0], after[0])]

    def test_blocks_see_what_is_before_their_anchor(self):
        for draft in random_drafts():
            self.assertEqual(self.change(draft, 4), [True, True, False])
            self.assertEqual(self.change(draft, 5), [False, True, False])
            self.assertEqual(self.change(draft, 12), [False, False, False])
            self.assertEqual(self.change(draft, 32), [False, False, True])
            self.assertEqual(self.change(draft, 33), [False, False, False])

    def test_window_begins_where_the_kind_of_draft_says(self):
        for draft, first in zip(random_drafts(), (14, 13)):
            self.assertEqual(self.change(draft, first)[2], True)
            self.assertEqual(self.change(draft, first - 1)[2], False)

    def test_rows_have_their_own_window_in_dflash_alone(self):
        positions, past = torch.arange(33, 41).view(1, 1, -1), torch.arange(40)
        for draft, begins in zip(random_drafts(), (range(14, 22), [13] * 8)):
            seen = draft.sees(positions, torch.tensor([[[[33]]]]), past)[0, 0]
            self.assertEqual([row.nonzero()[0].item() for row in seen], list(begins))
            self.assertEqual([row.nonzero()[-1].item() for row in seen], [32] * 8)

    def test_rows_see_each_other_as_the_kind_of_draft_says(self):
        flash, spark = random_drafts()
        self.assertTrue(flash.sees_own().all())
        self.assertEqual(spark.sees_own().sum(-1).tolist(), list(range(1, 9)))

    def test_blocks_equal_those_computed_alone(self):
        for draft in random_drafts():
            together = draft.propose(self.taps, self.anchors, self.first)
            for at in range(3):
                taps, one = self.taps[:, :self.anchors[0, at]], slice(at, at + 1)
                alone = draft.propose(taps, self.anchors[:, one], self.first[:, one])
                self.assertEqual(together[0, at].tolist(), alone[0, 0].tolist())


class Training(unittest.TestCase):
    def setUp(self):
        self.text = Text(3, [7, 8, 9, 10, 11, 12, 13], torch.randn(7, TAPS * 256))

    def learn(self, draft: Draft, steps: int):
        """Trains on the one text; the last gradients stay."""
        optimizers, blocks = make_optimizers(draft), blocks_of([self.text], [list(self.text.anchors())], draft.rows)
        for _ in range(steps):
            draft.zero_grad()
            draft.loss(blocks, torch.float32).backward()
            for optimizer in optimizers:
                optimizer.step()

    def test_blocks_end_with_the_answer(self):
        blocks = blocks_of([self.text], [list(self.text.anchors())], rows=4)
        self.assertEqual(blocks.anchors.tolist(), [[3, 4, 5]])
        self.assertEqual(blocks.tokens[0, 0].tolist(), [10, 11, 12, 13, 0])
        self.assertEqual(blocks.known.long().sum(-1).tolist(), [[4, 3, 2]])

    def test_every_weight_gets_a_gradient(self):
        for draft in new_drafts(64):
            self.learn(draft, 3)
            self.assertEqual([name for name, p in draft.named_parameters() if not p.grad.any()], [])

    def test_a_learnt_text_is_accepted(self):
        for draft in new_drafts(64):
            self.learn(draft, 40)
            self.assertEqual(accepted(draft, self.text, torch.float32), [3, 2, 1])

    def test_steps(self):
        self.assertEqual(steps_needed([0, 0, 0]), 3)
        self.assertEqual(steps_needed([2, 0, 0]), 1)
        self.assertEqual(steps_needed([1, 5, 0, 3, 0]), 3)


class Checkpoint(unittest.TestCase):
    def test_shapes_divide_among_eight(self):
        for draft in new_drafts(1280):
            sizes = [draft.c[name] for name in ("num_attention_heads", "intermediate_size", "vocab_size", "hidden_size")]
            self.assertEqual([size % 8 for size in sizes], [0] * 4)
            self.assertTrue(all(p.shape[-1] % 16 == 0 for p in draft.parameters()))

    def test_a_written_draft_comes_back(self):
        for draft in new_drafts(1280):
            with tempfile.TemporaryDirectory() as folder:
                work, target = Path(folder), Path(folder) / "draft"
                (work / "config.json").write_text(json.dumps(config_of(draft)))
                torch.save(draft.state_dict(), work / "weights.pt")
                draft_export.export(work, target)
                self.assertEqual({path.name for path in target.iterdir()}, {"config.json", "model.safetensors"})
                self.assertLess((target / "model.safetensors").stat().st_size, LARGEST_FILE)
                words = torch.zeros(2, 1280, 256)
                loaded = draft_export.load(target, *words)
            for (name, p), (_, q) in zip(draft.named_parameters(), loaded.named_parameters()):
                self.assertTrue(torch.equal(p.bfloat16().float(), q), name)


class Golden(unittest.TestCase):
    def golden(self, variable: str):
        """Folder, golden.json and golden.safetensors that a variable of the environment names."""
        if not (name := os.environ.get(variable)):
            self.skipTest(f"{variable} names no folder")
        folder = Path(name)
        return folder, json.loads((folder / "golden.json").read_text()), load_file(str(folder / "golden.safetensors"))

    def same_form(self, draft: Draft, golden: Path, ours: dict):
        """Our config.json has the reference's keys, our checkpoint its names."""
        theirs = json.loads((golden / "draft" / "config.json").read_text())
        for a, b in ((ours, theirs), *((ours[key], value) for key, value in theirs.items() if isinstance(value, dict))):
            self.assertEqual(sorted(a), sorted(b))
        wanted = load_file(str(golden / "draft" / "model.safetensors"))
        names = {name for name in wanted if not name.startswith(draft_export.NOT_READ)}
        self.assertEqual({name for name in draft.state_dict() if ".layers.2." not in f".{name}"}, names)

    def test_dflash(self):
        folder, facts, wanted = self.golden("QWEN_GOLDEN")
        target = {}
        for path in (folder / "target").glob("*.safetensors"):
            target |= load_file(str(path))
        words = next(t for name, t in target.items() if name.endswith("embed_tokens.weight"))
        draft = draft_export.load(folder / "draft", words, target["lm_head.weight"])
        for at, fact in enumerate(facts["runs"]["f32"]["anchors"]):
            at = f"f32.anchor{at}."
            given = wanted[at + "features"].unsqueeze(0), torch.tensor([[fact["start"]]]), torch.tensor([[fact["anchor"]]])
            with torch.no_grad():
                hidden = draft.hidden(draft.embedding, *given)[0, 0]
                logits, gate = (x[0, 0] for x in draft.predictions(*given))
                before = torch.tensor([fact["anchor"], *fact["path"][:-1]])
                candidates = wanted[at + "candidates"].long()
                scores = logits.gather(-1, candidates) + draft.candidate_selector(gate, before, candidates)
            for name, value in (("hidden", hidden), ("logits", logits), ("hproj", gate), ("scores", scores)):
                self.assertLess(largest(value, wanted[at + name]), TOLERANCE, at + name)
            self.assertEqual(draft.propose(*given)[0, 0].tolist(), fact["path"])
        self.same_form(new_drafts(64)[0], folder, config_of(new_drafts(64)[0]))

    def test_dspark(self):
        folder, facts, wanted = self.golden("KIMI_GOLDEN")
        words = torch.zeros(2, *load_file(str(folder / "draft" / "model.safetensors"))["lm_head.weight"].shape)
        draft, taps = draft_export.load(folder / "draft", *words), wanted["draft.aux"].float().unsqueeze(0)
        for fact in facts["draft"]:
            at = f"draft.anchor{fact['anchor_position']}."
            given = taps, torch.tensor([[fact["anchor_position"]]]), torch.tensor([[fact["anchor_token"]]])
            with torch.no_grad():
                hidden = draft.hidden(draft.embed_tokens.weight, *given)[0, 0]
                logits = draft.predictions(*given)[0, 0]
            self.assertLess(largest(hidden, wanted[at + "hidden_f32"]), TOLERANCE)
            self.assertLess(largest(logits, wanted[at + "base_logits_f32"]), TOLERANCE)
            self.assertEqual(draft.propose(*given)[0, 0].tolist(), fact["tokens_f32"])
        self.same_form(new_drafts(64)[1], folder, config_of(new_drafts(64)[1]))


if __name__ == "__main__":
    unittest.main()
