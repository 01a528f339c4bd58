import assert from "node:assert/strict";
import { test } from "node:test";

import { namePanel } from "../../../web/js/lib/page/app_mode.mjs";

const node = { id: 7, widgets: [{ name: "run_name" }, { name: "wan_trainer_status_13" }] };
const named = (inputs) => {
  const extra = { linearData: { inputs, outputs: [7] } };
  namePanel(extra, node);
  return extra.linearData.inputs;
};

test("the panel of an app has the name it has in this page", () => {
  const others = [
    [2, "folder"],
    [7, "run_name"],
    [8, "wan_trainer_panel"],
  ];
  const inputs = [...others, [7, "wan_trainer_panel", { height: 500 }]];
  assert.deepEqual(named(structuredClone(inputs)), [
    ...others,
    [7, "wan_trainer_status_13", { height: 500 }],
  ]);
});

test("an app that was saved finds its panel again, and a workflow that is none stays as it is", () => {
  const saved = [
    ["g:7:wan_trainer_status_4", "wan_trainer_status_4"],
    ["g:8:wan_trainer_status_5", "wan_trainer_status_5"],
  ];
  assert.deepEqual(named(structuredClone(saved)), [
    ["g:7:wan_trainer_status_13", "wan_trainer_status_13"],
    saved[1],
  ]);
  assert.doesNotThrow(() => namePanel({}, node));
  assert.deepEqual(named([null, "x"]), [null, "x"]);
});
