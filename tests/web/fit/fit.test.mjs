import assert from "node:assert/strict";
import { test } from "node:test";

import { apply, canApply } from "../../../web/js/lib/fit/apply.mjs";
import { trainingOf } from "../../../web/js/lib/fit/asked.mjs";
import {
  details,
  headline,
  routesText,
  suggestionText,
} from "../../../web/js/lib/fit/sentences.mjs";

const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** A node of the canvas: widgets by name, links by input. */
function node(type, values = {}, links = {}, mode = 0) {
  const names = Object.keys(links);
  return {
    type,
    comfyClass: type,
    mode,
    widgets: Object.entries(values).map(([name, value]) => ({ name, value })),
    inputs: names.map((name) => ({ name })),
    getInputNode: (slot) => links[names[slot]] ?? null,
    getInputLink: (slot) => ({ origin_id: links[names[slot]].id, origin_slot: 0 }),
    links,
    connect(_slot, to, input) {
      to.links[Object.keys(to.links)[input]] = this;
    },
  };
}

/** Load -> trainer, and a dataset through a cache; what `links` says comes on top. */
function training(links = {}, data = {}) {
  const load = node("LoadWanModel", { diffusion_model: "wan.safetensors", device: "default" });
  const clips = node(
    "WanVideoDataset",
    { width: 832, height: 480, num_frames: 81, ...data },
    { model: load },
  );
  const cache = node("CacheLatents", { mode: "auto" }, { dataset: clips, vae: node("VAELoader") });
  const values = { run_name: "x", steps: 10, rank: 32, expert: "auto", preview_every_n_steps: 5 };
  const trainer = node("TrainLoRA", values, { model: load, cache, ...links });
  return { load, clips, trainer };
}

test("a training is asked for by its widgets, from the loader down", () => {
  const { trainer } = training();
  assert.deepEqual(trainingOf(trainer)?.asked, {
    chain: [["LoadWanModel", { diffusion_model: "wan.safetensors", device: "default" }]],
    settings: null,
    train: { run_name: "x", steps: 10, rank: 32, expert: "auto", preview_every_n_steps: 0 },
    sizes: [[832, 480, 81]],
    preview: null,
    run: { run_name: "x", steps: 10, rank: 32, expert: "auto", preview_every_n_steps: 5 },
  });
});

test("a slider is asked for by its size, without clips", () => {
  const pairs = node("WanSliderPrompts", {
    prompts: "a dog",
    width: 480,
    height: 480,
    num_frames: 1,
  });
  const asked = trainingOf(training({ cache: pairs }).trainer)?.asked;
  assert.deepEqual([asked?.sizes, asked?.slider], [[[480, 480, 1]], true]);
  assert.equal("slider" in (trainingOf(training().trainer)?.asked ?? {}), false);
});

test("the size of the LoRA file is said at plan time", () => {
  const plan = { fits: true, size: "48x48x5", rank: 4, devices: [], suggestions: null };
  assert.equal(details({ ...plan, lora_bytes: 1.39 * MIB })[1], "LoRA file 1.39 MiB.");
  assert.equal(details({ ...plan, lora_bytes: 1.5 * GIB })[1], "LoRA file 1.5 GiB.");
  assert.equal(details(plan).length, 1);
});

test("what a plan does not know is said after all else", () => {
  const plan = { fits: true, size: "48x48x5", rank: 4, devices: [], suggestions: null };
  assert.equal(details(plan).length, 1);
  const said = details({ ...plan, notes: ["The plan counts two values."] });
  assert.deepEqual(said.slice(1), ["The plan counts two values."]);
});

test("which run it is remains open where a link or a sweep says a value", () => {
  assert.ok(trainingOf(training().trainer)?.asked.run);
  const sweep = node("WanSweepSettings", { setting: "rank", values: "4, 8" });
  assert.equal(trainingOf(training({ settings: sweep }).trainer)?.asked.run, undefined);
  const linked = training({ rank: node("PrimitiveInt", { value: 8 }) }).trainer;
  assert.equal(trainingOf(linked)?.asked.run, undefined);
});

test("a suggestion turns checkpointing on and unchecked blocks off", () => {
  const settings = node("WanTrainSettings", { gradient_checkpointing: false, unchecked_blocks: 4 });
  const found = trainingOf(training({ settings }).trainer);
  assert.ok(found);
  const wanted = { gradient_checkpointing: true, unchecked_blocks: 0 };
  assert.ok(canApply(found, wanted));
  apply(found, wanted, () => null);
  assert.deepEqual(
    Object.fromEntries(settings.widgets.map((one) => [one.name, one.value])),
    wanted,
  );
});

test("the settings above a sweep are those that are planned", () => {
  const settings = node("WanTrainSettings", { batch_size: 2 });
  const sweep = node("WanSweepSettings", { setting: "rank", values: "4, 8" }, { settings });
  const twice = node("WanSweepSettings", { setting: "seed", values: "1" }, { settings: sweep });
  assert.deepEqual(trainingOf(training({ settings: twice }).trainer)?.asked.settings, {
    batch_size: 2,
  });
});

test("what changes the model, settings and previews are asked for too; a bypassed node is not", () => {
  const { load } = training();
  const fp8 = node("Fp8Quantize", { scheme: "int8" }, { model: load });
  const split = node("SplitAcrossGPUs", { mode: "auto" }, { model: fp8 });
  const links = {
    model: split,
    vae: node("VAELoader"),
    settings: node("WanTrainSettings", { batch_size: 2 }),
    validation: node("WanPreviewSettings", { width: 480, height: 0, num_frames: 9, prompts: "a" }),
  };
  const { asked } = trainingOf(training(links).trainer) ?? {};
  assert.deepEqual(
    asked?.chain.map(([kind]) => kind),
    ["LoadWanModel", "Fp8Quantize", "SplitAcrossGPUs"],
  );
  assert.deepEqual(asked?.settings, { batch_size: 2 });
  assert.equal(asked?.train.preview_every_n_steps, 5);
  assert.deepEqual(asked?.preview, [480, 0, 9]);
  fp8.mode = 4;
  assert.deepEqual(
    trainingOf(training(links).trainer)?.asked.chain.map(([kind]) => kind),
    ["LoadWanModel", "SplitAcrossGPUs"],
  );
});

test("LoRAs that act in previews are asked for, the first one first, and belong to the training", () => {
  const first = node("WanLoraFile", { lora: "few.safetensors", strength: 1 });
  const second = node(
    "WanLoraFile",
    { lora: "style.safetensors", strength: 0.5 },
    { loras: first },
  );
  const validation = node("WanPreviewSettings", { width: 0 }, { loras: second });
  const found = trainingOf(training({ vae: node("VAELoader"), validation }).trainer);
  assert.deepEqual(
    found?.asked.loras?.map(({ lora }) => lora),
    ["few.safetensors", "style.safetensors"],
  );
  assert.ok(found?.nodes.includes(first));
  assert.equal(trainingOf(training({ validation }).trainer)?.asked.preview, null);
});

test("prompts are asked for where one may say a size of its own", () => {
  const of = (prompts) => {
    const values = { width: 0, height: 0, num_frames: 0, prompts, trigger_word: "ohwx" };
    const links = { vae: node("VAELoader"), validation: node("WanPreviewSettings", values) };
    return trainingOf(training(links).trainer)?.asked.prompts;
  };
  assert.equal(of("a red ball"), undefined);
  assert.deepEqual(of("a [trigger] --w 1280"), ["a [trigger] --w 1280", "ohwx"]);
});

test("previews as the template are asked for as such, and the plan says how large they are", () => {
  const picture = node("LoadImage");
  const links = { start_image: picture };
  const previews = node("WanPreviewSettings", {
    width: 0,
    height: 0,
    num_frames: 0,
    preview_size: "template",
  });
  const pictured = node("WanPreviewSettings", { preview_size: "clip" }, links);
  const of = (validation) =>
    trainingOf(training({ vae: node("VAELoader"), validation }).trainer)?.asked;
  assert.equal(of(previews)?.preview_size, "template");
  assert.equal(of(previews)?.pictured, false);
  assert.equal(of(pictured)?.pictured, true);
  const plan = { fits: true, devices: [], suggestions: null, preview: "640x640x49" };
  assert.deepEqual(details(plan), ["Previews 640x640x49."]);
});

test("what follows earlier runs says so", () => {
  const plan = { fits: true, devices: [], suggestions: null };
  const said = (own_runs) => details({ ...plan, own_runs }).join(" ");
  assert.equal(said({}), "");
  const both = "Memory and time as measured in earlier runs on this card.";
  assert.equal(said({ "cuda:0": { step: 1.1, seconds: 2 } }), both);
  assert.equal(
    said({ "cuda:0": { seconds: 2 } }),
    "Time as measured in earlier runs on this card.",
  );
  assert.equal(
    said({ "cuda:0": { step: 1.1 } }),
    "Memory as measured in earlier runs on this card.",
  );
});

test("nothing is asked for without a loader, a dataset, or a node that runs", () => {
  const { load, trainer } = training();
  assert.equal(trainingOf(node("TrainLoRA", {}, {})), null);
  assert.equal(trainingOf(training({ cache: node("WanCacheFromLatents") }).trainer), null);
  load.mode = 2;
  assert.equal(trainingOf(trainer), null);
});

test("a scan says which clips there are, until its node is turned", () => {
  const { clips, trainer } = training();
  clips.wanTrainerFacts = {
    asked: { num_frames: 81 },
    buckets: [
      { width: 640, height: 640, frames: 17 },
      { width: null, height: 480, frames: 1 },
    ],
  };
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [[640, 640, 17]]);
  clips.widgets[2].value = 33;
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [[832, 480, 33]]);
});

test("a file with another trainer's settings says the sizes, and its widgets are not turned", () => {
  const { trainer, clips } = training();
  clips.type = "WanDatasetFromFile";
  clips.comfyClass = "WanDatasetFromFile";
  clips.widgets.push({ name: "other_file", value: "mine.toml" });
  clips.widgets.push({ name: "use_file_settings", value: true });
  const found = trainingOf(trainer);
  assert.deepEqual([found?.asked.sizes, found?.asked.files?.[0].other_file], [[], "mine.toml"]);
  assert.equal(canApply(found, { num_frames: 33 }), false);
  clips.wanTrainerFacts = { asked: {}, buckets: [{ width: 64, height: 48, frames: 9 }] };
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [[64, 48, 9]], "a scan knows better");
  clips.wanTrainerFacts = null;
  clips.widgets.at(-1).value = false;
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [[832, 480, 81]]);
  clips.widgets.at(-1).value = true;
  clips.widgets.at(-2).value = "list.csv";
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [[832, 480, 81]]);
});

test("a suggestion turns the widgets it names, and none that is small already", () => {
  const { trainer, clips } = training();
  const small = node("WanVideoDataset", { num_frames: 5 }, {});
  clips.inputs.push({ name: "append_to" });
  const before = clips.getInputNode;
  clips.getInputNode = (slot) => (slot === 1 ? small : before(slot));
  small.widgets.push({ name: "width", value: 64 }, { name: "height", value: 64 });
  const heard = [];
  trainer.widgets.find(({ name }) => name === "rank").callback = (value) => heard.push(value);
  const found = trainingOf(trainer);
  apply(found, { num_frames: 33, rank: 8 }, () => null);
  assert.deepEqual(heard, [8]);
  assert.deepEqual(trainingOf(trainer)?.asked.sizes, [
    [832, 480, 33],
    [64, 64, 5],
  ]);
  assert.equal(canApply(found, { memory: "auto" }), false);
});

test("use fp8 puts a node between, or sets the one that is bypassed there", () => {
  const { trainer, load } = training();
  load.id = 1;
  trainer.pos = [500, 300];
  const added = [];
  trainer.graph = { getNodeById: () => load, add: (one) => added.push(one) };
  const made = node("Fp8Quantize", { scheme: "int8" }, { model: null });
  apply(trainingOf(trainer), { scheme: "fp8_e4m3fn" }, (kind) =>
    kind === "Fp8Quantize" ? made : null,
  );
  assert.deepEqual(added, [made]);
  assert.deepEqual(trainingOf(trainer)?.asked.chain[1], ["Fp8Quantize", { scheme: "fp8_e4m3fn" }]);
  made.mode = 4;
  assert.equal(trainingOf(trainer)?.asked.chain.length, 1);
  apply(trainingOf(trainer), { scheme: "fp8_e4m3fn" }, () => assert.fail("one is there"));
  assert.equal(trainingOf(trainer)?.asked.chain.length, 2);
});

test("a plan in words: of the fullest device, with what it does and how long it takes", () => {
  const plan = {
    fits: false,
    size: "832x480x81",
    rank: 32,
    devices: [
      { name: "cuda:0", needed: 5 * GIB, room: 15 * GIB, total: 16 * GIB },
      { name: "cuda:1", needed: 17.25 * GIB, room: 15 * GIB, total: 16 * GIB },
    ],
    host: { needed: 70 * GIB, room: 60 * GIB },
    measures: { gradient_checkpointing: true, offload_inputs: true, blocks_to_swap: 12 },
    card: "RTX 4080",
    step_seconds: 28.82,
    seconds: 43_230,
    suggestions: null,
  };
  const usable = "17.3 GiB needed, 15.0 GiB free of 16.0 GiB on cuda:1";
  assert.equal(headline(plan), `Does not fit: ${usable}`);
  assert.equal(headline({ ...plan, fits: true }), "Fits: 17.3 GiB needed, 15.0 GiB free on cuda:1");
  const played = [{ name: "cpu", needed: 35 * MIB, room: 30 * MIB, total: GIB }];
  const alone = { ...plan, devices: played, host: undefined };
  assert.equal(headline(alone), "Does not fit: 35 MiB needed, 30 MiB free of 1.0 GiB");
  played[0].needed = 24 * MIB;
  assert.equal(headline({ ...alone, fits: true }), "Fits: 24 MiB needed, 30 MiB free");
  assert.equal(
    details(alone).at(-1),
    "On a card such as RTX 4080: about 28.8 s per step, 12:00:30 in all.",
  );
  const onHost = { ...plan, devices: plan.devices.slice(0, 1) };
  assert.equal(headline(onHost), "Does not fit: 70.0 GiB of CPU RAM needed, 60.0 GiB free");
  assert.ok(
    !details(onHost).some(
      (line) => line.startsWith("Host memory") || line.includes("other programs"),
    ),
  );
  assert.deepEqual(details(plan), [
    "Largest clips 832x480x81, rank 32.",
    "1.0 GiB are reserved for the driver and other programs.",
    "Saves memory by: gradient checkpointing, activations offloaded to host memory, 12 blocks offloaded (block swap).",
    "Host memory: 70.0 GiB needed, 60.0 GiB free.",
    "About 28.8 s per step, 12:00:30 in all (RTX 4080).",
  ]);
  const ofEpochs = details({ ...plan, seconds: null });
  assert.equal(ofEpochs.at(-1), "About 28.8 s per step (RTX 4080).");
  const short = details({ ...plan, step_seconds: 0.02, seconds: 0 });
  assert.equal(short.at(-1), "About 0.02 s per step (RTX 4080).");
  const toy = details({ ...plan, step_seconds: 0.0004, seconds: 0.1 });
  assert.ok(!toy.some((line) => line.startsWith("About")));
});

test("host memory is said where much of it is taken, also when all fits", () => {
  const devices = [{ name: "cuda:0", needed: 5 * GIB, room: 15 * GIB, total: 16 * GIB }];
  const said = (needed) =>
    details({
      fits: true,
      devices,
      suggestions: null,
      host: { needed: needed * GIB, room: 64 * GIB },
    });
  assert.deepEqual(said(60), ["Host memory: 60.0 GiB needed, 64.0 GiB free."]);
  assert.deepEqual(said(20), []);
  const held = { needed: 20 * GIB, room: 64 * GIB, held: "9.4 GiB (WanTEModel 6.7, WanVAE 0.5)" };
  assert.deepEqual(details({ fits: true, devices, suggestions: null, host: held }), [
    "ComfyUI uses 9.4 GiB (WanTEModel 6.7, WanVAE 0.5) of CPU RAM; training frees the part that no node needs.",
  ]);
});

test("buttons say what they set", () => {
  assert.equal(suggestionText({ num_frames: 33 }), "33 frames fits");
  assert.equal(suggestionText({ rank: 16 }), "rank 16 fits");
  assert.equal(suggestionText({ scheme: "fp8_e4m3fn" }), "use fp8");
  assert.equal(suggestionText({ scheme: "int8", num_frames: 9 }), "fp8 + 9 frames fits");
  assert.equal(suggestionText({ width: 416, height: 240 }), "416 × 240 fits");
  assert.equal(suggestionText({ preview_every_n_steps: 0 }), "no previews fits");
  assert.equal(suggestionText({ blocks_to_swap: -1 }), "memory auto fits");
  assert.equal(suggestionText({ gradient_checkpointing: true }), "gradient checkpointing fits");
  assert.equal(suggestionText({ unchecked_blocks: 0 }), "gradient checkpointing fits");
  assert.equal(suggestionText({ something: 1 }), "");
});

test("the bars of token routes have what they save for a name", () => {
  const routes = { kept: [1, 0.5, 0.5, 1], flops_saved: 0.276, time_saved: null };
  const said = "Tokens that layers 0 to 3 process: 28 % less arithmetic in a step.";
  assert.equal(routesText(routes), said);
});

test("the folders of datasets are sent, so that context files next to clips are counted", () => {
  assert.deepEqual(trainingOf(training({}, { folder: "input:pairs" }).trainer)?.asked.folders, [
    "input:pairs",
  ]);
});
