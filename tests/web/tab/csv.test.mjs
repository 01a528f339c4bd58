import assert from "node:assert/strict";
import { test } from "node:test";

import { curvesCsv, row, runsCsv } from "../../../web/js/lib/tab/csv.mjs";

const RUNS = [
  {
    id: "fox",
    state: "done",
    step: 10,
    steps: 10,
    loss: 0.1234567890123,
    settings: { rank: 8, targets: ["q", "k"] },
    updated: 1700000000,
  },
  {
    id: "owl, white",
    state: "failed",
    step: 3,
    steps: 9,
    reason: 'It said "no".',
    settings: { rank: 16 },
  },
];

test("a field is quoted where it must be, and no text is a formula", () => {
  assert.equal(row([1e-7, -0.5, true, null, undefined, ""]), "1e-7,-0.5,true,,,\r\n");
  assert.equal(row(['a "b", c', "d\ne"]), '"a ""b"", c","d\ne"\r\n');
  assert.equal(row(["=1+1", "-x", "@y", "+z"]), "'=1+1,'-x,'@y,'+z\r\n");
});

test("the table as a file: every figure in full, a column for each setting that differs", () => {
  const [head, fox, owl] = runsCsv(RUNS).map((line) => line.trimEnd());
  assert.equal(
    head,
    "id,state,step,steps,eval_best,eval_best_step,eval_loss,loss,rank,targets,seconds_per_step,updated,reason",
  );
  assert.equal(
    fox,
    'fox,done,10,10,,,,0.1234567890123,8,"[""q"",""k""]",,2023-11-14T22:13:20.000Z,',
  );
  assert.equal(owl, '"owl, white",failed,3,9,,,,,16,,,,"It said ""no""."');
});

test("the curves as a file: every line of every page of every run", async () => {
  const step = (number) => ({
    event: "step",
    step: number,
    loss: number / 10,
    lr: 1e-4,
    expert: "auto",
  });
  const pages = {
    fox: [
      { next: 2, records: [step(1), { event: "saved", step: 1 }], more: true },
      {
        next: 4,
        records: [step(2), { event: "evaluated", step: 2, eval_loss: 0.5, held_out: true }],
      },
    ],
    owl: [{ next: 1, records: [step(7)] }],
  };
  const told = [];
  const parts = await curvesCsv(
    ["fox", "owl"],
    async (run, since) => pages[run][since ? 1 : 0],
    (run, lines) => told.push([run, lines]),
  );
  assert.equal(
    parts.join(""),
    [
      "run,step,expert,loss,lr,grad_norm,seconds,eval_loss,held_out",
      "fox,1,auto,0.1,0.0001,,,,",
      "fox,2,auto,0.2,0.0001,,,,",
      "fox,2,,,,,,0.5,true",
      "owl,7,auto,0.7,0.0001,,,,",
      "",
    ].join("\r\n"),
  );
  assert.deepEqual(told, [
    ["fox", 2],
    ["fox", 4],
    ["owl", 1],
  ]);
});
