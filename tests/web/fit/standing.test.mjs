import assert from "node:assert/strict";
import { test } from "node:test";

import { standingText } from "../../../web/js/lib/fit/standing.mjs";

const run = {
  ...{ id: "fox", state: "done", step: 160, steps: 160, action: "done", new: "fox_002" },
  ...{ until: 160, changes: [] },
};
const title = (name) => ({ learning_rate: "learning rate" })[name] ?? name;
const said = (more) => standingText({ ...run, ...more }, title);

test("a finished run with other settings is named with at most three of them, and a new one begins", () => {
  const changes = [
    { setting: "learning_rate", there: 0.1 + 0.2, here: 0.0002 },
    { setting: "diffusion_model", there: null, here: null },
    { setting: "rank", there: 8, here: 16 },
    { setting: "seed", there: 0, here: 1 },
  ];
  assert.equal(
    said({ action: "start", changes }),
    "fox is a finished run (step 160 of 160). It has other settings: learning rate is 0.3 in that run and 0.0002 here; " +
      "diffusion_model; rank is 8 in that run and 16 here; 1 more. Run starts a new one, fox_002.",
  );
  assert.match(
    said({ action: "refuse", changes, new: "" }),
    /Run is refused, because resume is set/,
  );
});

test("the same settings go on, where the clips are the same", () => {
  const other = "With other clips, Run starts fox_002.";
  assert.ok(said({}).endsWith(`With the same clips, Run trains nothing more. ${other}`));
  const stopped = said({ state: "stopped", step: 40, action: "resume" });
  assert.equal(
    stopped,
    `fox is a run that was stopped (step 40 of 160). With the same clips, Run resumes it up to step 160. ${other}`,
  );
  assert.match(said({ action: "resume", until: null }), /Run resumes it\. With other/);
  assert.match(
    said({ new: "" }),
    /With other clips, Run is refused, because resume is set to require\.$/,
  );
  assert.match(
    said({ state: "failed", action: "start" }),
    /that failed.*fox_002, because resume is set/,
  );
});
