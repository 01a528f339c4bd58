import assert from "node:assert/strict";
import { test } from "node:test";

import { RunHistory } from "../../../web/js/lib/run/history.mjs";
import { lookOf, warningText } from "../../../web/js/lib/run/looks.mjs";
import { loraNames } from "../../../web/js/lib/run/names.mjs";
import { roomText } from "../../../web/js/lib/tab/cached_clips.mjs";
import { cardText, deletedText, question } from "../../../web/js/lib/tab/run_card.mjs";

test("a saved step says what is wrong with its LoRA, and nothing where all is well", () => {
  assert.equal(warningText(lookOf({})), "");
  assert.equal(warningText(lookOf({ updates: { "blocks.0": 0.1 }, passed_over: 0 })), "");
  assert.equal(
    warningText(lookOf({ updates: { "blocks.0": 0, "blocks.1": 0 } })),
    "This LoRA has no effect yet.",
  );
  const lost = lookOf({ passed_over: 3 });
  assert.equal(warningText(lost), "ComfyUI's loader skips 3 keys of this LoRA.");
  const one = lookOf({ passed_over: 1 });
  assert.equal(warningText(one), "ComfyUI's loader skips 1 key of this LoRA.");
});

test("the history keeps what was seen of each saved step", () => {
  const history = new RunHistory();
  history.take(0, { next: 1, records: [{ event: "saved", step: 4, passed_over: 2 }] });
  assert.deepEqual(history.looks.get(4), { skipped: 2, isEmpty: false });
});

test("the names of a run's newest LoRAs are both of a pair, and none of a single step", () => {
  const of = (...names) => loraNames({ lora_names: names.map((n) => `${n}.safetensors`) });
  assert.equal(of("a", "a_000200", "a_000100"), "a.safetensors");
  assert.equal(
    of("a_high_noise", "a_low_noise", "a_high_noise_000200"),
    "a_high_noise.safetensors\na_low_noise.safetensors",
  );
  assert.equal(of("a_000200"), "a_000200.safetensors");
  assert.equal(loraNames(null), "");
});

test("the card of a run says that its newest evaluation gave no number", () => {
  const run = {
    state: "done",
    step: 4,
    steps: 4,
    eval_loss: null,
    eval_step: 4,
    eval_held_out: true,
  };
  assert.equal(cardText(run, 0), "step 4 / 4 · evaluation not finite at step 4");
  assert.equal(cardText({ ...run, eval_step: null }, 0), "step 4 / 4");
  assert.equal(cardText({ ...run, eval_loss: 0.25 }, 0), "step 4 / 4 · evaluation 0.25");
});

test("who deleted a run is told what is left of it", () => {
  const gone = "Deleted “cat”. Its saved steps are deleted, so Run on its graph starts at step 0;";
  assert.ok(deletedText("cat", { kept: [] }).startsWith(gone));
  assert.ok(deletedText("cat", { kept: [], freed: 0 }).endsWith("are kept."));
  assert.match(
    deletedText("cat", { kept: ["a.txt", "b"], freed: 3 << 20 }),
    /are kept\. 3 MiB are free again\. Your own files stay in its folder: a\.txt, b\.$/,
  );
});

test("who deletes a run is asked with what goes, the names that stay and the room it frees", () => {
  const [goes, stays, ...more] = question("cat", [], null);
  assert.ok(goes.startsWith("Delete the run “cat” with its saved steps and previews?"));
  assert.ok(stays.endsWith("and LoRAs in the loader lists."));
  assert.deepEqual(more, []);
  const loras = ["w/cat.safetensors", "w/cat_000010.safetensors"];
  const [, named, frees] = question("cat", loras, 2 ** 31);
  assert.match(named, /lists\. LoRAs of this run in the loader lists: w\/cat, w\/cat_000010\.$/);
  assert.equal(frees, "Deleting it frees 2.0 GiB.");
  assert.match(question("cat", ["a", "b", "c", "d", "e"], null)[1], /lists: a, b, c and 2 more\.$/);
});

test("cached clips say what they take, and offer to delete only what nothing needs", () => {
  assert.equal(roomText({ bytes: 0, spare: 0 }), "No clips are cached.");
  assert.match(
    roomText({ bytes: 2 ** 31, spare: 0 }),
    /^Cached clips use 2\.0 GiB\. All of them belong to unfinished runs/,
  );
  const some = roomText({ bytes: 2 ** 31, spare: 2 ** 30 });
  assert.match(some, /use 2\.0 GiB, and no unfinished run needs 1\.0 GiB of that\. Delete these\?/);
});
