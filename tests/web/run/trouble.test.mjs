import assert from "node:assert/strict";
import { test } from "node:test";

import { report, troubleOf } from "../../../web/js/lib/run/trouble.mjs";

const failed = { state: "failed", step: 10, steps: 20, reason: "clip.mp4 is bad. Mend it." };

test("only a run that failed, or a node that broke, is in trouble", () => {
  for (const state of ["running", "done", "stopped", "new"])
    assert.equal(troubleOf({ ...failed, state }), null, state);
  assert.equal(troubleOf({ ...failed, live: true }), null, "it was queued again");
  assert.equal(troubleOf(null), null);
  assert.equal(troubleOf(null, { said: "peft is missing." })?.sentence, "peft is missing.");
});

test("it says how far it came, what is kept, and where Retry goes on", () => {
  const told = troubleOf(failed, { reached: 13 });
  assert.equal(told.headline, "Failed after step 13 of 20. Saved step 10 is kept.");
  assert.equal(told.sentence, failed.reason);
  assert.equal(told.retry, "Retry from step 10");
  const early = troubleOf({ ...failed, step: 0 }, { reached: 3 });
  assert.equal(early.headline, "Failed after step 3 of 20. Nothing was saved yet.");
  assert.equal(early.retry, "Retry");
  const never = troubleOf({ ...failed, step: 0, reason: "" });
  assert.equal(never.headline, "Failed before the first step.");
  assert.equal(never.sentence, "It did not say why; its log may.");
});

test("a server that does not answer is trouble too, of which nobody can show a log", () => {
  const told = troubleOf({ ...failed, state: "running", live: true }, { gone: 10 });
  assert.equal(told.headline, "ComfyUI does not answer.");
  assert.match(
    told.sentence,
    /^Saved step 10 is kept\. Start ComfyUI again.* goes on after step 10\.$/,
  );
  assert.equal(told.retry, "Look again");
  assert.ok(told.gone);
  assert.doesNotMatch(troubleOf(null, { gone: 0 }).sentence, /step/);
});

test("a report names the run, what happened and the end of the log", () => {
  const text = report("cat", troubleOf(failed), "last line");
  for (const part of ["cat", "Failed after step 10 of 20.", failed.reason, "last line"])
    assert.ok(text.includes(part), part);
});
