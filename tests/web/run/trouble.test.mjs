import assert from "node:assert/strict";
import { test } from "node:test";

import { report, stepOf, troubleOf } from "../../../web/js/lib/run/trouble.mjs";

const START_FROM =
  " A new run can begin with the LoRA of saved step 10: choose it in start_from_lora, at the same rank or a higher one.";

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
  assert.equal(
    told.headline,
    "Failed after step 13 of 20. Saved step 10 is kept, what came after it is not.",
  );
  assert.equal(told.sentence, failed.reason);
  assert.equal(told.retry, "Retry from step 10");
  const early = troubleOf({ ...failed, step: 0 }, { reached: 3 });
  assert.equal(early.headline, "Failed after step 3 of 20. Nothing was saved yet.");
  assert.equal(early.retry, "Retry");
  const never = troubleOf({ ...failed, step: 0, reason: "" });
  assert.equal(never.headline, "Failed before the first step.");
  assert.equal(never.sentence, "It did not say why; its log may.");
});

test("what the headline and the buttons say is not said again, and remedies are a list", () => {
  const full =
    "The GPU ran out of memory: it asked for 2.00 GiB more. What helps most, in this order: batch_size 1 instead of 4, with more gradient_accumulation_steps (begins a new run); a rank below 64 (begins a new run). Saved steps are kept.";
  const told = troubleOf({ ...failed, reason: full });
  assert.equal(told.sentence, "The GPU ran out of memory: it asked for 2.00 GiB more.");
  assert.deepEqual(told.helps, [
    "batch_size 1 instead of 4, with more gradient_accumulation_steps (begins a new run)",
    "a rank below 64 (begins a new run)",
  ]);
  assert.match(
    report("cat", told, ""),
    /more\.\n1\. batch_size 1 .*run\)\n2\. a rank below 64 \(begins a new run\)$/,
  );
  for (const now of ["press Run", "queue"]) {
    const lost = `Rank 1 went silent. Saved steps are kept; ${now} again to resume.`; // the second: said by earlier versions
    assert.equal(troubleOf(null, { said: lost }).sentence, "Rank 1 went silent.");
  }
  assert.deepEqual(troubleOf(failed).helps, []);
});

test("a run that would end the same way again is not to be tried again as it is", () => {
  for (const stands of ["Saved step 10 is the last good one.", "No good step was saved."]) {
    const reason = `20 steps gave no finite loss. ${stands} Unchanged, it would end here again. What helps most, in this order: learning_rate 0.05 instead of 0.1 (begins a new run); base_precision bf16 or fp32 in Load Wan Model (begins a new run).`;
    const told = troubleOf({ ...failed, reason });
    assert.equal(
      told.sentence,
      "20 steps gave no finite loss. Unchanged, it would end here again.",
    );
    assert.equal(told.helps.length, 2);
    const good = stands.startsWith("Saved");
    assert.equal(
      told.first,
      `Change one of these, then press Run: a new run begins at step 0, and this one stays as it is.${good ? START_FROM : ""}`,
    );
    assert.match(
      told.headline,
      good ? /Saved step 10 is the last good one and is kept\.$/ : /Nothing was saved yet\.$/,
    );
    assert.equal(told.retry, "");
  }
});

test("Retry stands beside remedies that leave the run what it is, and Run beside those that begin a new one", () => {
  const begin = (...helps) => {
    const reason = `The GPU ran out of memory. What helps most, in this order: ${helps.join("; ")}. Saved steps are kept.`;
    const { retry, first } = troubleOf({ ...failed, reason });
    return [retry, first];
  };
  const [same, anew] = ["other programs off the GPU", "a rank below 64 (begins a new run)"];
  const again = "Do one of these, then press “Retry from step 10”.";
  assert.deepEqual(begin(same), ["Retry from step 10", again]);
  assert.deepEqual(begin(anew), [
    "",
    `Change one of these, then press Run: a new run begins at step 0, and this one stays as it is.${START_FROM}`,
  ]);
  assert.deepEqual(begin(same, anew), [
    "Retry from step 10",
    `${again} After one that begins a new run press Run: it starts at step 0.${START_FROM}`,
  ]);
});

test("where Retry may help, its button is named as it is written", () => {
  assert.equal(troubleOf(failed).first, "To try again, press “Retry from step 10”.");
  assert.equal(troubleOf({ ...failed, step: 0 }).first, "To try again, press “Retry”.");
  const reason =
    "The computer's own memory (RAM) ran out. What helps most, in this order: close other programs. Saved steps are kept.";
  const told = troubleOf({ ...failed, reason });
  assert.equal(told.retry, "Retry from step 10");
  assert.match(told.first, /^Do one of these, then press “Retry from step 10”\.$/);
  const anew = reason.replace("programs", "programs; choose an fp8 file (begins a new run)");
  const { first } = troubleOf({ ...failed, reason: anew });
  assert.match(
    first,
    /^Do one of these, then press “Retry from step 10”\. After one that begins a new run press Run: it starts at step 0\./,
  );
  assert.ok(first.endsWith(START_FROM));
  assert.equal(
    troubleOf({ ...failed, step: 0, reason }).first,
    "Do one of these, then press “Retry”.",
  );
});

test("of a run that was no longer finite the saved step counts that is good", () => {
  const reason =
    "20 steps gave no finite loss. Saved step 7 is the last good one. Unchanged, it would end here again. What helps most, in this order: learning_rate 0.05 instead of 0.1 (begins a new run).";
  const told = troubleOf({ ...failed, reason });
  assert.match(told.headline, /Saved step 7 is the last good one and is kept\.$/);
  assert.match(told.first, /the LoRA of saved step 7:/);
});

test("a run that failed has come as far everywhere as its headline says", () => {
  assert.equal(stepOf({ ...failed, reached: 13 }), 13);
  assert.equal(stepOf({ ...failed, reached: null }), 10);
  assert.equal(stepOf({ ...failed, state: "stopped", reached: 13 }), 10);
});

test("a server that does not answer is trouble too, of which nobody can show a log", () => {
  const told = troubleOf({ ...failed, state: "running", live: true }, { gone: 10 });
  assert.equal(told.headline, "ComfyUI does not answer. Saved step 10 is kept.");
  assert.match(
    told.sentence,
    /^If ComfyUI ended, training ended with it\. .* looks again by itself every few seconds/,
  );
  assert.match(
    told.first,
    /^If it ended, start ComfyUI again and press Run: .* last saved step\.$/,
  );
  assert.equal(told.retry, "Check now");
  assert.ok(told.gone);
  assert.equal(troubleOf(null, { gone: 0 }).headline, "ComfyUI does not answer.");
});

test("a report names the run, what happened and the end of the log", () => {
  const text = report("cat", troubleOf(failed), "last line");
  for (const part of ["cat", "Failed after step 10 of 20.", failed.reason, "last line"])
    assert.ok(text.includes(part), part);
});
