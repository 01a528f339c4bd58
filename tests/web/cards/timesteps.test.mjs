import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { share } from "../../../web/js/lib/cards/density.mjs";

import {
  boundaryOf,
  drawable,
  drawOf,
  modelOf,
  percent,
  quarters,
  rangeOf,
  readingAt,
  sentences,
  shiftOf,
  timestep,
} from "../../../web/js/lib/cards/timesteps.mjs";

const golden = JSON.parse(
  readFileSync(new URL("../../fixtures/timestep_shares.json", import.meta.url), "utf8"),
);
const widgets = (values) => Object.entries(values).map(([name, value]) => ({ name, value }));
const settings = (sampling = "shift", shift = 3, scale = 1) =>
  widgets({ timestep_sampling: sampling, discrete_flow_shift: shift, sigmoid_scale: scale });
const WHOLE = { low: 0, high: 1, boundary: null, open: false, shift: null };
const T2V = { boundary: 0.875, expert: "high_noise", shift: 12 };

test("the boundary of every expert is the engine's", () => {
  for (const [name, boundary] of Object.entries(golden.boundaries)) {
    assert.equal(boundaryOf(name), boundary, name);
  }
  for (const name of ["2.1 T2V-14B", "2.2 TI2V-5B", "auto", ""])
    assert.equal(boundaryOf(name), null);
});

test("the training shift of every model is the engine's", () => {
  for (const [name, shift] of Object.entries(golden.shifts)) {
    assert.equal(shiftOf(name), shift, name);
  }
});

test("a shift of 0 is the model's, and the card says which", () => {
  const told = (widgetsOf, range) => sentences(drawOf(widgetsOf, range), range).join(" ");
  const high = rangeOf([{ expert: "auto", model: T2V }]);
  assert.equal(drawOf(settings("shift", 0), high).shift, 12);
  assert.match(told(settings("shift", 0), high), /0 means the model's shift: 12\.$/);
  assert.equal(drawOf(settings("shift", 7), high).shift, 7);
  assert.doesNotMatch(told(settings("shift", 7), high), /model's/);
  assert.equal(drawOf(settings("shift", 0), WHOLE).shift, 3);
  assert.match(told(settings("shift", 0), WHOLE), /has run; this curve uses 3\.$/);
  assert.doesNotMatch(told(settings("sigmoid", 0), high), /model's/);
});

test("a model is known by what it said when it ran, or by its variant", () => {
  const now = widgets({ diffusion_model: "a", variant: "auto", low_noise_model: "none" });
  const asked = { diffusion_model: "a" };
  const facts = { asked, boundary: 0.9, expert: "low_noise", training_shift: 5 };
  assert.deepEqual(modelOf(now, facts), { boundary: 0.9, expert: "low_noise", shift: 5 });
  assert.equal(modelOf(now, { ...facts, asked: { diffusion_model: "b" } }), null, "another file");
  assert.equal(modelOf(now, null), null);
  const named = widgets({ variant: "2.2 T2V-A14B high noise", low_noise_model: "none" });
  assert.deepEqual(modelOf(named, null), T2V);
  named[1].value = "low.safetensors";
  assert.deepEqual(modelOf(named, null), { ...T2V, expert: null }, "a pair has both");
  assert.deepEqual(modelOf(widgets({ variant: "2.1 T2V-14B" }), null), {
    boundary: null,
    expert: null,
    shift: 3,
  });
});

test("one expert cuts the range, several or none do not", () => {
  const range = (...trainers) => rangeOf(trainers.map(([expert, model]) => ({ expert, model })));
  assert.deepEqual(range(), WHOLE);
  assert.deepEqual(range(["auto", null]), WHOLE);
  assert.deepEqual(range(["auto", T2V]), { ...WHOLE, low: 0.875, boundary: 0.875, shift: 12 });
  const pair = { boundary: 0.9, expert: null, shift: 5 };
  assert.deepEqual(range(["low", pair]), { ...WHOLE, high: 0.9, boundary: 0.9, shift: 5 });
  assert.deepEqual(range(["low", pair], ["high", pair]), { ...WHOLE, boundary: 0.9, shift: 5 });
  assert.deepEqual(range(["auto", pair]), { ...WHOLE, boundary: 0.9, shift: 5 });
  assert.deepEqual(range(["high", null]), { ...WHOLE, open: true });
  assert.deepEqual(range(["high", T2V], ["high", pair]), { ...WHOLE, open: true });
});

test("numbers that make no sense are not drawn", () => {
  assert.deepEqual(drawOf(settings(), WHOLE), {
    sampling: "shift",
    shift: 3,
    scale: 1,
    low: 0,
    high: 1,
  });
  for (const bad of [settings("median"), settings("shift", -1), settings("shift", 3, "x"), []]) {
    assert.equal(drawOf(bad, WHOLE), null);
  }
});

test("the usual draw is told in timesteps", () => {
  const draw = drawOf(settings(), WHOLE);
  assert.deepEqual(sentences(draw, WHOLE), [
    "Half of the training is between timesteps 604 and 855; the median is 750.",
  ]);
  assert.equal(timestep(draw, 0.5), 750);
  assert.equal(readingAt(draw, 750), "50 % of the training is below timestep 750");
  const parts = quarters(draw);
  assert.deepEqual(
    parts.map(({ from, to }) => [from, to]),
    [
      [0, 250],
      [250, 500],
      [500, 750],
      [750, 1000],
    ],
  );
  assert.ok(Math.abs(parts.reduce((sum, one) => sum + one.part, 0) - 1) < 1e-12);
});

test("what cuts the draw, or does not count for it, is said", () => {
  const told = (widgetsOf, range) => sentences(drawOf(widgetsOf, range), range).slice(1);
  const high = { low: 0.875, high: 1, boundary: 0.875, open: false };
  assert.deepEqual(told(settings(), high), [
    "This expert trains 875 to 1000: 20 % of the draws; the others are drawn again.",
  ]);
  assert.deepEqual(told(settings(), { ...WHOLE, boundary: 0.9 }), [
    "The boundary between the experts of this model is timestep 900.",
  ]);
  assert.match(told(settings(), { ...WHOLE, open: true })[0], /after Load Wan Model has run/);
  assert.deepEqual(told(settings("sigmoid"), WHOLE), ["sigmoid does not use discrete_flow_shift."]);
  assert.deepEqual(told(settings("uniform"), WHOLE), ["uniform does not use sigmoid_scale."]);
});

test("timesteps that the settings leave out are not drawn, and that is said", () => {
  const asked = [...settings("uniform", 1), ...widgets({ min_timestep: 250, max_timestep: 500 })];
  const draw = drawOf(asked, WHOLE);
  assert.deepEqual([draw.low, draw.high, draw.narrowed], [0.25, 0.5, true]);
  assert.equal(
    sentences(draw, WHOLE)[1],
    "Timesteps 250 to 500 are trained: 25 % of the draws; the others are drawn again.",
  );
  const high = { low: 0.875, high: 1, boundary: 0.875, open: false };
  assert.equal(drawOf(asked, high), null, "nothing of the expert is left");
  const usual = [...settings(), ...widgets({ min_timestep: 0, max_timestep: 1000 })];
  assert.equal(drawOf(usual, high).narrowed, undefined);
});

test("what a sampling reads, and what it does not, is said", () => {
  const told = (sampling) => sentences(drawOf(settings(sampling, 0), WHOLE), WHOLE).slice(1);
  assert.deepEqual(told("flux_shift"), [
    "The shift depends on the size of each clip; this curve is for 832x480.",
    "flux_shift does not use discrete_flow_shift.",
  ]);
  assert.deepEqual(told("beta"), [
    "beta does not use discrete_flow_shift.",
    "beta does not use sigmoid_scale.",
  ]);
  // (832 / 16) x (480 / 16) = 1560 tokens
  const shift = Math.exp(0.5 + (0.65 * (1560 - 256)) / (4096 - 256));
  assert.ok(Math.abs(drawOf(settings("flux_shift", 0), WHOLE).shift - shift) < 1e-12);
  const asked = [...settings("logsnr"), ...widgets({ logit_mean: -6, logit_std: 2 })];
  const { mean, deviation } = drawOf(asked, WHOLE);
  assert.deepEqual([mean, deviation], [-6, 2]);
  assert.equal(timestep(drawOf(asked, WHOLE), 0.5), 953, "sigmoid(3)");
});

test("a draw that never falls into its range is told instead of drawn", () => {
  const range = { low: 0.9, high: 1, boundary: 0.9, open: false };
  const draw = drawOf(settings("sigmoid", 1, 0.1), range);
  assert.ok(!drawable(draw));
  assert.deepEqual(sentences(draw, range), [
    "Almost no drawn timestep is within 900 to 1000: choose uniform, or another shift.",
  ]);
});

test("shares are read in per cent", () => {
  assert.deepEqual([0, 0.0012, 0.05, 0.5, 1].map(percent), [
    "0 %",
    "0.1 %",
    "5.0 %",
    "50 %",
    "100 %",
  ]);
});

test("a list is drawn as it is, and a range squeezes where it is asked to", () => {
  const listed = [...settings("shift", 3), ...widgets({ timestep_list: "1000, 750 500" })];
  const draw = drawOf(listed, WHOLE);
  assert.deepEqual(draw.levels, [0.5, 0.75, 1]);
  assert.ok(Math.abs(share(draw, 0.7, 0.8) - 1 / 3) < 1e-12);
  assert.deepEqual(sentences(draw, WHOLE), [
    "Only listed timesteps from 0 to 1000 are trained, equally often.",
  ]);
  const half = widgets({ min_timestep: 200, max_timestep: 600, timestep_range: "rescaled" });
  const squeezed = drawOf([...settings("shift", 3), ...half], WHOLE);
  const whole = drawOf(settings("shift", 3), WHOLE);
  assert.equal(
    timestep(squeezed, 0.5),
    Math.round(200 + 0.4 * 750),
    "sigmoid(0) moved by 3 is 750",
  );
  assert.ok(Math.abs(share(squeezed, 0.2, 0.4) - share(whole, 0, 0.5)) < 1e-12);
  assert.ok(sentences(squeezed, WHOLE).includes("All drawn timesteps are scaled into 200 to 600."));
});
