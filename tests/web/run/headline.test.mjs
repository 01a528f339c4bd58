import assert from "node:assert/strict";
import { test } from "node:test";

import { headlineOf } from "../../../web/js/lib/run/headline.mjs";
import { RunHistory } from "../../../web/js/lib/run/history.mjs";

const said = (read) => {
  const all = { chip: null, about: null, live: false, detail: null, history: new RunHistory() };
  const made = headlineOf({ ...all, ...read });
  return made && `${made.kind} ${made.sign} ${made.text}`;
};

/** A history of steps of two seconds each. */
function trained(steps, of) {
  const history = new RunHistory();
  const lines = Array.from({ length: steps }, (_, at) => ({
    event: "step",
    step: at + 1,
    steps: of,
    loss: 1,
    seconds: 2,
  }));
  for (const line of lines) history.add(line);
  return history;
}

test("a node that never trained says what to press", () => {
  assert.equal(said({}), "ready ○ Not trained yet: press Run.");
  assert.equal(said({ noFolder: true }), "ready ○ First choose a folder of clips.");
  assert.equal(said({ fits: false }), "ready ○ Not trained yet.", "what would fit comes first");
});

test("while the nodes before it run, nobody is told to press Run again", () => {
  const about = { kind: "waits" };
  assert.equal(said({ about }), "busy ▶ Waiting for the nodes before it");
  assert.equal(
    said({ about, detail: { state: "done", step: 30, steps: 30 } }),
    "busy ▶ Waiting for the nodes before it",
    "the run shown is an earlier one",
  );
  assert.equal(said({ about, chip: "Cache" }), "busy ▶ Encoding clips", "news of one of them");
});

test("where a node before it failed, the panel names that node and not Run", () => {
  const about = { kind: "blocked", node: "Cache" };
  assert.equal(
    said({ about }),
    "stopped ■ Not trained: Cache failed. The red box says what to do.",
  );
});

test("while clips are encoded the panel counts them", () => {
  const about = { kind: "encoding", done: 12, total: 36, name: "a.mp4" };
  assert.equal(said({ chip: "Cache", about }), "busy ▶ Encoding clips 12 of 36");
  assert.equal(said({ chip: "Cache", about: { kind: "looking" } }), "busy ▶ Encoding clips");
});

test("a training run says how long it takes, and which stage it is in", () => {
  const live = { live: true, history: trained(120, 400) };
  assert.equal(said({ ...live, chip: "Train" }), "busy ▶ Training, 9:20 left, step 120 of 400");
  assert.equal(said({ live: true, chip: "Load" }), "busy ▶ Loading the model");
  assert.equal(said({ live: true }), "busy ▶ Starting", "its process starts");
  const sample = { kind: "stage", stage: "sample" };
  assert.equal(said({ ...live, chip: "Validate", about: sample }), "busy ▶ Rendering a preview");
});

test("an ended run says how it ended", () => {
  const detail = (state, more = {}) => ({ detail: { state, step: 30, steps: 400, ...more } });
  const history = trained(30, 400);
  assert.equal(said({ ...detail("done"), history }), "done ✓ Done. 30 steps in 1:00");
  assert.equal(said(detail("done")), "done ✓ Done.", "no times are read yet");
  assert.equal(said(detail("stopped")), "stopped ■ Stopped: step 30 of 400");
  assert.equal(said(detail("stopped", { reason: "cancelled" })), "stopped ■ Stopped: cancelled");
  assert.equal(said(detail("failed")), null, "the box below says why");
});
