import assert from "node:assert/strict";
import { test } from "node:test";

import { report, stepOf, troubleOf } from "../../../web/js/lib/run/trouble.mjs";
import { failure, filled, inANewRun } from "../filled.mjs";

const START_FROM =
  "A new run leaves this one as it is. A new run can start with the LoRA of saved step 10: choose it in start_from_lora of Train Wan LoRA, at the same rank or a higher one.";

const ANEW = "What helps, best first; then press Run, which starts a new run at step 0:";

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
    "Failed after step 13 of 20. Saved step 10 is kept, later steps are lost.",
  );
  assert.equal(told.sentence, failed.reason);
  assert.equal(told.retry, "Retry from step 10");
  const early = troubleOf({ ...failed, step: 0 }, { reached: 3 });
  assert.equal(early.headline, "Failed after step 3 of 20. Nothing was saved yet.");
  assert.equal(early.retry, "Retry");
  const never = troubleOf({ ...failed, step: 0, reason: "" });
  assert.equal(never.headline, "Failed before the first step.");
  assert.equal(never.sentence, "No reason was given; the log may have one.");
});

test("who ended it himself just tries again, and memory is named only where it ends again", () => {
  const killed = failure("If you or another program ended it, change nothing.", {
    helps: ["close other programs", inANewRun("fewer num_frames")],
    ifAgain: true,
    closing: "Saved steps are kept; press Run again to resume.",
  });
  const names = ["w/cat.safetensors", "w/cat_000010.safetensors"];
  const told = troubleOf({ ...failed, reason: killed, lora_names: names });
  assert.match(told.sentence, /change nothing\. To try again, press “Retry from step 10”\.$/);
  assert.match(told.remedies[0].lead, /^If it ends again, .* press “Retry from step 10”:$/);
  assert.deepEqual(told.remedies[0].helps, ["close other programs"]);
  assert.deepEqual(told.remedies[1].helps, ["fewer num_frames"]);
  assert.equal(
    told.last,
    START_FROM.replace("choose it", "choose w/cat_000010.safetensors"),
    "the file is named",
  );
});

test("what the headline and the buttons say is not said again, and remedies are a list", () => {
  const helps = [
    "batch_size 1 instead of 4, with more gradient_accumulation_steps",
    "a rank below 64",
  ].map(inANewRun);
  const closing = "Saved steps are kept.";
  const full = failure("The GPU ran out of memory: it requested 2.00 GiB more.", {
    helps,
    closing,
  });
  const told = troubleOf({ ...failed, reason: full });
  assert.equal(told.sentence, "The GPU ran out of memory: it requested 2.00 GiB more.");
  assert.deepEqual(told.remedies, [
    {
      lead: ANEW,
      helps: [
        "batch_size 1 instead of 4, with more gradient_accumulation_steps",
        "a rank below 64",
      ],
    },
  ]);
  assert.match(
    report("cat", told, ""),
    /more\.\nWhat helps, .* step 0:\n1\. batch_size 1 .*steps\n2\. a rank below 64$/,
  );
  const lost = failure("Rank 1 went silent.", { closing });
  assert.equal(lost, "Rank 1 went silent. Saved steps are kept.");
  assert.equal(troubleOf(null, { said: lost }).sentence, "Rank 1 went silent.");
  assert.deepEqual(troubleOf(failed).remedies, []);
});

test("a run that would end the same way again is not to be tried again as it is", () => {
  const helps = ["learning_rate 0.05", "base_precision fp32 in Load Wan Model"].map(inANewRun);
  for (const stands of [
    filled("Saved step {step} is the last good one.", { step: "10" }),
    "No good step was saved.",
  ]) {
    const again = "Without a change, it would stop here again.";
    const reason = failure("20 steps gave no finite loss.", { stands, again, helps });
    const told = troubleOf({ ...failed, reason });
    assert.equal(
      told.sentence,
      "20 steps gave no finite loss. Without a change, it would stop here again.",
    );
    assert.deepEqual(
      told.remedies.map(({ lead, helps }) => [lead, helps.length]),
      [[ANEW, 2]],
    );
    const good = stands.startsWith("Saved");
    assert.equal(told.last, good ? START_FROM : "");
    assert.match(
      told.headline,
      good ? /Saved step 10 is the last good one and is kept\.$/ : /Nothing was saved yet\.$/,
    );
    assert.equal(told.retry, "");
  }
});

test("Retry stands above remedies that leave the run what it is, and Run above those that begin a new one", () => {
  const said = (reason, also = {}) => {
    const { retry, remedies, last } = troubleOf({ ...failed, reason }, also);
    return [retry, remedies.map(({ lead, helps }) => [lead, ...helps]), last];
  };
  const [same, anew] = ["other programs off the GPU", inANewRun("a rank below 64")];
  const full = (...helps) =>
    failure("The GPU ran out of memory.", { helps, closing: "Saved steps are kept." });
  const again = "What helps, best first; then press “Retry from step 10”:";
  assert.deepEqual(said(full(same)), ["Retry from step 10", [[again, same]], ""]);
  assert.deepEqual(said(full(anew)), ["", [[ANEW, "a rank below 64"]], START_FROM]);
  assert.deepEqual(said(full(anew, same)), [
    "Retry from step 10",
    [
      [again, same],
      ["Or change settings and press Run, which starts a new run at step 0:", "a rank below 64"],
    ],
    START_FROM,
  ]);
  const [, listed] = said(full(anew, same), { isListed: true });
  assert.match(listed[1][0], /^Or open its workflow, change settings there and press Run/);
  assert.match(said(full(anew), { isListed: true })[1][0][0], /^What helps, best first: open its/);
});

test("where nothing is known to help, Retry is offered by the name of its button", () => {
  assert.equal(troubleOf(failed).last, "To try again, press “Retry from step 10”.");
  assert.equal(troubleOf({ ...failed, step: 0 }).last, "To try again, press “Retry”.");
});

test("of a run that was no longer finite the saved step counts that is good", () => {
  const reason = failure("20 steps gave no finite loss.", {
    stands: filled("Saved step {step} is the last good one.", { step: "7" }),
    helps: [inANewRun("learning_rate 0.05 instead of 0.1")],
  });
  const told = troubleOf({ ...failed, reason });
  assert.match(told.headline, /Saved step 7 is the last good one and is kept\.$/);
  assert.match(told.last, /the LoRA of saved step 7:/);
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
    /^If ComfyUI ended, training ended with it\. .* checks again every few seconds/,
  );
  assert.match(
    told.last,
    /^If it ended, start ComfyUI again and press Run: .* last saved step; other settings start a new run\.$/,
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
