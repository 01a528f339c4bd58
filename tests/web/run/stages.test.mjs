import assert from "node:assert/strict";
import { test } from "node:test";

import { RunHistory } from "../../../web/js/lib/run/history.mjs";
import { chipOf, recorded, StageClock } from "../../../web/js/lib/run/stages.mjs";

const NOTHING = { seconds: 0, count: 0 };

/** A history with these lines. */
function read(...records) {
  const history = new RunHistory();
  history.take(0, { next: records.length, records });
  return history;
}

const ended = (stage, seconds) => ({ event: "stage_ended", stage, seconds, step: 0 });

test("every stage of the engine that takes time has a chip", () => {
  const chips = ["cache", "start", "load", "train", "evaluate", "sample", "save"].map(chipOf);
  assert.deepEqual(chips, ["Cache", "Load", "Load", "Train", "Validate", "Validate", "Save"]);
  assert.equal(chipOf("done"), null);
  assert.equal(chipOf(undefined), null);
  assert.equal(chipOf(null), null);
});

test("a page that has seen nothing shows the times of the file, all sessions together", () => {
  const step = { event: "step", step: 1, loss: 1, seconds: 2.5 };
  const history = read(
    ended("load", 4),
    ended("cache", 9),
    ended("evaluate", 1),
    ended("sample", 2),
    ended("load", 6),
    step,
  );
  const clock = new StageClock();
  const shown = ["Load", "Cache", "Validate", "Train", "Save"].map((chip) =>
    clock.seconds(chip, recorded(history, chip), 99_000),
  );
  assert.deepEqual(shown, [10, 9, 3, 2.5, null]);
});

test("a stage under way adds to what the file has", () => {
  const history = read(ended("save", 4));
  const clock = new StageClock();
  assert.equal(clock.seconds("Save", recorded(history, "Save"), 0), 4);
  clock.enter("Save", 1000);
  assert.equal(clock.seconds("Save", recorded(history, "Save"), 3000), 6);
  clock.enter("Train", 4000);
  assert.equal(clock.seconds("Save", recorded(history, "Save"), 9000), 7, "until its line comes");
  history.add(ended("save", 2.75));
  assert.equal(clock.seconds("Save", recorded(history, "Save"), 9250), 6.75);
});

test("a line that comes while its chip stays active is not counted twice", () => {
  const history = read();
  const clock = new StageClock();
  clock.enter("Validate", 0);
  assert.equal(clock.seconds("Validate", recorded(history, "Validate"), 8000), 8);
  history.add(ended("evaluate", 7.5));
  assert.equal(clock.seconds("Validate", recorded(history, "Validate"), 8000), 7.5);
  assert.equal(clock.seconds("Validate", recorded(history, "Validate"), 10_000), 9.5);
});

test("once a stage was left and the file was read, only the file counts", () => {
  const history = read(ended("evaluate", 7.5), ended("cache", 1));
  const clock = new StageClock();
  clock.seconds("Validate", recorded(history, "Validate"), 0);
  clock.enter("Validate", 0);
  clock.enter("Cache", 900);
  clock.read(history, 800);
  assert.equal(
    clock.seconds("Validate", recorded(history, "Validate"), 1000),
    8.4,
    "asked too early",
  );
  clock.read(history, 950);
  assert.equal(clock.seconds("Validate", recorded(history, "Validate"), 1000), 7.5);
  clock.seconds("Cache", recorded(history, "Cache"), 1000);
  clock.enter("Load", 5000);
  clock.read(history, 6000);
  assert.equal(
    clock.seconds("Cache", recorded(history, "Cache"), 9000),
    5,
    "the worker has yet to write it",
  );
});

test("files of earlier versions have no times: what this page saw is shown", () => {
  const clock = new StageClock();
  clock.enter("Load", 1000);
  clock.enter("Save", 4000);
  clock.enter("Load", 5000);
  assert.equal(clock.seconds("Load", NOTHING, 7000), 5);
  assert.equal(clock.seconds("Save", NOTHING, 7000), 1);
  clock.enter(null, 8000);
  assert.equal(clock.seconds("Load", NOTHING, 99_000), 6);
  assert.equal(clock.seconds("Cache", NOTHING, 99_000), null);
});

test("training is as long as its steps, and before the first one as long as was seen", () => {
  const clock = new StageClock();
  clock.enter("Train", 0);
  assert.equal(clock.seconds("Train", NOTHING, 3000), 3);
  assert.equal(clock.seconds("Train", { seconds: 3.5, count: 1 }, 9000), 3.5);
});
