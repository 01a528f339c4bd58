import assert from "node:assert/strict";
import { test } from "node:test";

import {
  outputText,
  SaveWatch,
  standingText,
  summaryText,
} from "../../../web/js/lib/run/status.mjs";

test("an evaluation on training clips is said to be one", () => {
  const run = {
    status: "done",
    step: 4,
    steps: 4,
    eval_loss_first: 1,
    eval_loss_last: 0.5,
    lora_name: "",
  };
  const said = (eval_held_out) => summaryText({ ...run, eval_held_out });
  assert.match(said(false), /evaluation loss 1.0000 → 0.5000 on training clips/);
  for (const other of [true, null, undefined]) assert.doesNotMatch(said(other), /training clips/);
});

test("the loss of a run that made two LoRAs is said to be that of both experts", () => {
  const use = [
    { lora: "high", model: "a" },
    { lora: "low", model: "b" },
  ];
  const run = { status: "done", step: 4, steps: 4, eval_loss_first: 1, eval_loss_last: 0.5, use };
  assert.match(summaryText(run), /→ 0.5000 \(mean of both experts\)\n/);
  const under = [{ lora: "frozen", model: "a", strength: 1 }, use[0]];
  assert.doesNotMatch(summaryText({ ...run, use: under }), /experts/);
});

test("a finished run is summed up with its loss and the name loaders list", () => {
  const run = {
    status: "done",
    step: 20,
    steps: 20,
    eval_loss_first: 1.23456,
    eval_loss_last: 0.5,
    lora_name: "wan_trainer/a.safetensors",
  };
  assert.equal(
    summaryText(run),
    "done: step 20 of 20, evaluation loss 1.2346 → 0.5000\nwan_trainer/a.safetensors",
  );
});

test("a run that ended says which LoRA goes on which model, and in which graph", () => {
  const pair = [
    { lora: "wan_trainer/a_high_noise.safetensors", model: "high.safetensors" },
    { lora: "wan_trainer/a_low_noise.safetensors", model: "low.safetensors" },
  ];
  const run = { state: "stopped", step: 3, steps: 20, use: pair, template: "video_wan2_2_14B_t2v" };
  const lines = [
    "In ComfyUI's template video_wan2_2_14B_t2v, with a LoraLoaderModelOnly after each Load Diffusion Model:",
    "wan_trainer/a_high_noise.safetensors: on high.safetensors, at strength 1.0",
    "wan_trainer/a_low_noise.safetensors: on low.safetensors, at strength 1.0",
    "Or use Apply Wan LoRA, which applies exactly what was trained, on quantized models too.",
  ];
  assert.deepEqual(
    summaryText({ ...run, status: "done" })
      .split("\n")
      .slice(1),
    lines,
  );
  assert.deepEqual(standingText(run).split("\n"), ["stopped: step 3 of 20", ...lines]);
  for (const state of ["running", "failed"])
    assert.equal(standingText({ ...run, state }).split("\n").length, 1, state);
  assert.equal(standingText({ ...run, live: true }).split("\n").length, 1);
  const worded = pair.map((one) => ({ ...one, trigger: "ohwx, 絵" }));
  const said = standingText({ ...run, use: worded }).split("\n");
  assert.equal(said[4], "Write ohwx, 絵 into the prompt.");
  assert.deepEqual(said.toSpliced(4, 1), ["stopped: step 3 of 20", ...lines]);
  const [one] = pair;
  const single = { ...run, template: "text_to_video_wan", use: [{ ...one, strength: 0.5 }, one] };
  assert.match(
    standingText(single),
    /template text_to_video_wan, with LoraLoaderModelOnly after Load Diffusion Model:\n.*0.5, in addition\n.*1.0\nOr use Apply Wan LoRA, .*$/,
  );
  assert.equal(standingText({ ...run, template: "" }).split("\n").length, 3);
});

test("a stopped run says why, and numbers that are missing are left out", () => {
  const run = { status: "stopped", step: 3, steps: 20, reason: "cancelled", eval_loss_first: 1.03 };
  assert.equal(summaryText(run), "stopped: step 3 of 20 (cancelled)");
});

test("lists are fetched once per save and once per end", () => {
  const watch = new SaveWatch();
  const messages = [
    { state: "new" },
    { state: "new", saved_step: 10 },
    { state: "new", saved_step: 10 },
    { state: "new", saved_step: 20 },
    { state: "done", saved_step: 20 },
    { state: "done", saved_step: 20 },
  ];
  const asked = messages.map((facts) => watch.isNew({ node: "8", text: "", run: "a", ...facts }));
  assert.deepEqual(asked, [false, true, false, true, true, false]);
});

test("the same step of another run or another node is news", () => {
  const watch = new SaveWatch();
  const saved = { node: "8", text: "", run: "a", saved_step: 10 };
  assert.equal(watch.isNew(saved), true);
  assert.equal(watch.isNew({ ...saved, run: "b" }), true);
  assert.equal(watch.isNew({ ...saved, node: "3:8", run: "b" }), true);
});

test("an output says how its run ended, how many clips there are, or nothing", () => {
  const clips = (count) => ({ wan_clips: [{ rows: [{ clips: Array(count).fill({}) }] }] });
  assert.equal(
    outputText({ wan_run: [{ status: "done", step: 2, steps: 2 }] }),
    "done: step 2 of 2",
  );
  assert.equal(outputText(clips(2)), "done: 2 clips");
  assert.equal(outputText(clips(1)), "done: 1 clip");
  assert.equal(outputText({ images: [{}] }), "");
  assert.equal(outputText(null), "");
});
