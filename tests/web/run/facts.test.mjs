import assert from "node:assert/strict";
import { test } from "node:test";
import { learn } from "../../../web/js/lib/page/words.mjs";
import {
  chartText,
  facts,
  memoryBars,
  memoryOf,
  stateText,
} from "../../../web/js/lib/run/facts.mjs";
import { RunHistory } from "../../../web/js/lib/run/history.mjs";
import { expertName, stageName, stateName } from "../../../web/js/lib/run/names.mjs";

const GIB = 2 ** 30;

function trained(extra = {}) {
  const history = new RunHistory();
  for (const step of [1, 2]) {
    history.add({
      event: "step",
      step,
      steps: 10,
      loss: 0.5 / step,
      lr: 1e-4,
      seconds: 3,
      ...extra,
    });
  }
  return history;
}

const values = (history, summary = null) =>
  Object.fromEntries(facts(history, summary).map((fact) => [fact.name, fact.value]));

test("numbers come from the newest step, and what nobody knows is left out", () => {
  assert.deepEqual(values(trained()), {
    step: "2 / 10",
    "s/it": "3",
    left: "0:24",
    loss: "0.25",
    lr: "1e-4",
  });
});

test("a run that failed has come as far as the box beside the numbers says", () => {
  const failed = { state: "failed", step: 1, steps: 10, reached: 6 };
  assert.equal(values(trained(), failed).step, "6 / 10");
  assert.equal(values(trained(), { ...failed, reached: null }).step, "2 / 10");
  assert.equal(values(trained(), { ...failed, state: "stopped" }).step, "2 / 10");
});

test("tokens per second are shown as soon as the engine counts them", () => {
  assert.equal(values(trained({ tokens: 640, seconds: 4 }))["tokens/s"], "160");
  assert.equal(values(trained({}))["tokens/s"], undefined);
});

test("a run that ended has no learning rate any more", () => {
  assert.equal(values(trained(), { state: "running", step: 1, steps: 10 }).lr, "1e-4");
  assert.equal(values(trained(), { state: "done", step: 2, steps: 10 }).lr, undefined);
});

test("epochs are counted, and their end is told where it is sure", () => {
  const epoch = (extra) => values(trained(extra)).epoch;
  assert.equal(epoch({}), undefined, "an older version wrote the line");
  assert.equal(epoch({ epoch: 3.4 }), "3.4 / 17");
  assert.equal(epoch({ epoch: 0.3333 }), "0.3 / 1.7");
  assert.equal(epoch({ epoch: 0.0021 }), "0.002", "rounded, it does not say the end");
  assert.equal(epoch({ epoch: 3.4, expert: "high" }), "3.4", "of its own steps");
});

test("prior preservation is the newest there is, since not every step has such a clip", () => {
  const history = trained({ prior_loss: 0.01234567 });
  assert.equal(values(history).prior, "0.01235");
  history.add({ event: "step", step: 3, steps: 10, loss: 0.1, prior_loss: null });
  assert.equal(values(history).prior, "0.01235");
  assert.match(chartText(history), /, prior preservation 0[.]0123$/);
  assert.equal(values(trained({ prior_loss: 0 })).prior, "0", "the model as it was");
});

test("a run that has ended has no time left", () => {
  assert.equal("left" in values(trained(), { state: "stopped", step: 2, steps: 10 }), false);
});

test("before a run there is nothing to say", () => {
  assert.deepEqual(facts(new RunHistory(), null), []);
  assert.equal(chartText(new RunHistory()), "");
});

test("memory bars have one scale, and unknown parts are absent", () => {
  const [bar] = memoryBars({ "cuda:0": { now: 5 * GIB, peak: 10 * GIB, predicted: null } });
  assert.equal(bar.text, "5.0 GiB now · 10.0 GiB peak");
  assert.equal(bar.predicted, null);
  assert.ok(Math.abs(bar.now * 2 - bar.peak) < 1e-9);
  assert.deepEqual(memoryBars({ cpu: { now: null, peak: 0, predicted: null } }), []);
  assert.deepEqual(memoryBars(undefined), []);
});

test("a memory bar is a share of what the card has, where a run says that", () => {
  const small = { now: null, peak: 4 * GIB, predicted: 6 * GIB, total: 8 * GIB };
  const large = { now: null, peak: 4 * GIB, predicted: null, total: 16 * GIB };
  const [first, second] = memoryBars({ "cuda:0": small, "cuda:1": large });
  assert.deepEqual([first.peak, first.predicted, second.peak], [0.5, 0.75, 0.25]);
  assert.equal(first.text, "4.0 GiB peak · 6.0 GiB predicted · of 8.0 GiB");
  const [beyond] = memoryBars({ "cuda:0": { ...small, predicted: 10 * GIB } });
  assert.deepEqual([beyond.peak, beyond.predicted], [0.4, 1]);
});

test("two devices are two bars", () => {
  const memory = { now: null, peak: GIB, predicted: GIB };
  assert.deepEqual(
    memoryBars({ "cuda:0": memory, "cuda:1": memory }).map((bar) => bar.device),
    ["cuda:0", "cuda:1"],
  );
});

test("a state says its reason unless all is done", () => {
  const run = { id: "a", step: 3, steps: 9, reason: "Cancel was pressed" };
  assert.equal(
    stateText({ ...run, state: "stopped" }),
    "stopped: step 3 of 9 (Cancel was pressed)",
  );
  assert.equal(stateText({ ...run, state: "done" }), "done: step 3 of 9");
  assert.equal(stateText({ ...run, state: "failed" }), "failed", "the box says after which step");
});

test("of a pair an evaluation is called that of its expert", () => {
  const history = trained({ expert: "low" });
  history.add({ event: "evaluated", step: 1, eval_loss: 0.4, expert: "high", held_out: true });
  assert.deepEqual(history.judged, ["high"]);
  history.add({ event: "evaluated", step: 2, eval_loss: 0.2, expert: "low", held_out: true });
  assert.deepEqual(history.judged, ["high", "low"]);
  assert.equal(values(history)["eval, low noise expert"], "0.2");
  const turned = trained();
  for (const [expert, eval_loss] of [
    ["high", 0.4],
    ["low", 0.9],
  ])
    turned.add({ event: "evaluated", step: 2, eval_loss, expert, held_out: true });
  assert.equal(values(turned)["eval, low noise expert"], "0.9", "whose turn has come");
  const single = trained();
  single.add({ event: "evaluated", step: 2, eval_loss: 0.2, held_out: true });
  assert.equal(values(single).eval, "0.2");
  const unread = { state: "done", step: 2, eval_loss: 0.2, eval_expert: "high" };
  assert.equal(values(trained(), unread)["eval, high noise expert"], "0.2");
});

test("an evaluation that gave no number says so beside the last that did", () => {
  const history = trained();
  history.add({ event: "evaluated", step: 1, eval_loss: 0.4, held_out: true });
  history.add({ event: "evaluated", step: 2, eval_loss: null, held_out: true });
  assert.equal(values(history).eval, "not finite at step 2, before 0.4");
  assert.match(chartText(history), /evaluation loss not finite at step 2, before 0[.]4$/);
  history.add({ event: "evaluated", step: 3, eval_loss: 0.3, held_out: true });
  assert.equal(values(history).eval, "0.3", "it recovered");
  const never = trained();
  never.add({ event: "evaluated", step: 2, eval_loss: null });
  assert.equal(values(never).eval, "not finite at step 2");
  const unread = { state: "done", step: 2, eval_loss: null, eval_step: 2 };
  assert.equal(values(trained(), unread).eval, "not finite at step 2");
  const pair = trained({ expert: "low" });
  pair.add({ event: "evaluated", step: 1, eval_loss: 0.4, expert: "high" });
  pair.add({ event: "evaluated", step: 2, eval_loss: null, expert: "low" });
  assert.equal(
    values(pair)["eval, low noise expert"],
    "not finite at step 2",
    "0.4 is the other's",
  );
});

test("the chart is told in words", () => {
  const history = trained({ expert: "high" });
  history.add({ event: "evaluated", step: 2, eval_loss: 0.2 });
  history.add({ event: "saved", step: 2 });
  assert.equal(
    chartText(history),
    "Training loss of high noise from 0.5 at step 1 to 0.25 at step 2, evaluation loss 0.2, 1 saved step",
  );
});

test("a model without experts has no expert's name", () => {
  assert.equal(expertName("auto"), "");
  assert.equal(expertName("low"), "low noise");
  assert.equal(expertName("third"), "third");
  assert.equal(expertName("constructor"), "constructor");
});

test("memory is what the newest step says, and an ended run holds none now", () => {
  const cards = {
    "cuda:0": { now: 1, peak: 2, predicted: 3 },
    "cuda:1": { now: 4, peak: 5, predicted: null },
  };
  const older = { "cuda:0": { now: null, peak: 9, predicted: null } };
  const history = trained({ memory: cards });
  assert.deepEqual(memoryOf(history, { state: "running", memory: older }), cards);
  assert.deepEqual(memoryOf(history, { state: "done", memory: older }), {
    "cuda:0": { now: null, peak: 2, predicted: 3 },
    "cuda:1": { now: null, peak: 5, predicted: null },
  });
  assert.deepEqual(memoryOf(trained({}), { state: "done", memory: older }), older);
});

test("two devices are drawn on one scale", () => {
  const bars = memoryBars({
    "cuda:0": { peak: 20 * GIB },
    "cuda:1": { now: 5 * GIB, peak: 10 * GIB },
  });
  assert.equal(bars[0].peak, 2 * bars[1].peak);
  assert.equal(bars[0].peak, 4 * bars[1].now);
  assert.deepEqual([bars[0].now, bars[0].predicted], [null, null]);
});

test("a device without a number has no bar, and odd answers none at all", () => {
  const nothing = { cpu: { now: null, peak: null, predicted: null }, odd: null, text: "much" };
  assert.deepEqual(memoryBars(nothing), []);
  assert.deepEqual(memoryBars(memoryOf(trained({ memory: "much" }), null)), []);
});

test("states and stages are shown in the reader's words, unknown ones as they came", () => {
  learn({ stopped: "停止済み", Train: "学習", "low noise": "低ノイズ", both: "両方" });
  try {
    assert.deepEqual(["stopped", "melted"].map(stateName), ["停止済み", "melted"]);
    assert.deepEqual(["Train", "Melt"].map(stageName), ["学習", "Melt"]);
    assert.equal(expertName("low_noise"), "低ノイズ");
    assert.equal(expertName("both"), "両方");
    assert.equal(
      stateText({ state: "stopped", step: 3, steps: 9, reason: "why" }),
      "停止済み: step 3 of 9 (why)",
    );
  } finally {
    learn({});
  }
});
