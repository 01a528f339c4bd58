import assert from "node:assert/strict";
import { test } from "node:test";

import {
  notes,
  numbers,
  pictures,
  table,
  tableTitle,
  warnings,
  withCaptions,
  withMeasures,
} from "../../../web/js/lib/cards/dataset.mjs";

const bucket = (frames, width, height, clips, stills, samples, batches) => ({
  frames,
  width,
  height,
  clips,
  stills,
  samples,
  batches,
});
const dataset = {
  clips: 4,
  stills: 1,
  samples: 7,
  held_out: { count: 1, names: ["x.mp4"] },
  batch_sizes: [1, 2, 4],
  averaged: false,
  buckets: [
    bucket(33, 832, 480, 4, 0, 6, [6, 3, 2]),
    bucket(1, 480, 832, 0, 1, 1, [1, 1, 1]),
    bucket(null, null, null, 4, 1, 7, [7, 4, 3]),
  ],
  findings: [
    { kind: "faster", count: 2, names: ["a", "b"] },
    { kind: "enlarged", count: 1, names: ["c"] },
    { kind: "of tomorrow", count: 3, names: [] },
  ],
  excluded: { count: 1, names: ["y.mp4"] },
  left_out: { count: 2, files: [{ name: "d", reason: "short" }] },
  cache_bytes: 3 * 2 ** 20,
  encoding_s: 75,
  sheet: {
    columns: 6,
    rows: 2,
    cell_width: 160,
    cell_height: 120,
    name_height: 16,
    cells: Array.from({ length: 8 }, (_, n) => ({
      name: `${n}.mp4`,
      frames: 33,
      width: 832,
      height: 480,
      caption: n ? "a clip" : "",
    })),
  },
};

test("one group of files is one", () => {
  const told = (/** @type {number} */ count) =>
    notes({
      findings: ["same_bytes", "look_alike"].map((kind) => ({ kind, count, names: ["a, b"] })),
    }).map((note) => `${note.count} ${note.text}`);
  assert.deepEqual(told(1), [
    "1 group of files with the same bytes",
    "1 group of files that look the same",
  ]);
  assert.deepEqual(told(2), [
    "2 groups of files with the same bytes",
    "2 groups of files that look the same",
  ]);
});

test("the numbers are those that are not zero", () => {
  const told = numbers(dataset).map(({ name, value }) => `${name} ${value}`);
  assert.deepEqual(told, [
    "clips 4",
    "stills 1",
    "samples 7",
    "held out 1",
    "excluded 1",
    "skipped 2",
    "warnings 2",
    "cache 3 MiB",
    "encoding 1:15",
  ]);
  const few = { clips: 3, stills: 0, samples: 3, cache_bytes: 9000, encoding_s: null };
  assert.deepEqual(
    numbers(few).map(({ name, value }) => `${name} ${value}`),
    ["clips 3", "cache 9 KiB"],
  );
});

test("the table has a row for each size, and no column in which nothing is told", () => {
  const { head, sizes, rows } = table(dataset);
  assert.deepEqual(head, ["width × height × frames", "files", "samples"]);
  assert.deepEqual(sizes, ["1", "2", "4"]);
  assert.deepEqual(rows[0], ["832 × 480 × 33", "4", "6", "6", "3", "2"]);
  assert.equal(rows[2][0], "all");
  const clips = table({ ...dataset, stills: 0, samples: 4 });
  assert.equal(clips.head.length, 2);
  assert.ok(clips.rows.every((row) => row.length === 2 + 3));
  assert.notEqual(tableTitle({ averaged: true }), tableTitle(dataset));
});

test("warnings come first, and a finding nobody knows is shown as it came", () => {
  assert.equal(warnings(dataset), 2);
  assert.deepEqual(
    notes(dataset).map((note) => [note.text, note.count, note.names, note.warns]),
    [
      ["smaller than their training size, so enlarged", 1, "c", true],
      ["of tomorrow", 3, "", true],
      ["faster than the model: frames are dropped", 2, "a, b", false],
    ],
  );
});

test("every picture is moved to where the sheet has it", () => {
  const found = pictures(dataset);
  assert.equal(found.length, 8);
  assert.deepEqual([found[0].left, found[0].top], ["0%", "0%"]);
  // Second row, second column: a row of the sheet is 136 pixels high, a picture 120.
  assert.equal(found[7].left, "-100%");
  assert.ok(Math.abs(Number.parseFloat(found[7].top) + (100 * 136) / 120) < 1e-9);
  assert.deepEqual([found[7].wide, found[7].shape], ["600%", "160 / 120"]);
  assert.equal(found[0].about, "0.mp4\n832 × 480 × 33");
  assert.equal(found[1].about, "1.mp4\n832 × 480 × 33\na clip");
});

test("facts of another kind are shown as nothing, and throw nothing", () => {
  for (const odd of [{}, { buckets: 3, findings: "x", sheet: null, left_out: null }]) {
    assert.deepEqual([numbers(odd), table(odd).rows, notes(odd), pictures(odd)], [[], [], [], []]);
  }
  assert.deepEqual(notes({ findings: [null] }), []);
  assert.deepEqual(pictures({ sheet: { ...dataset.sheet, columns: "6);evil" } }), []);
});

test("what is no record, number or text in the facts is passed over", () => {
  const odd = {
    batch_sizes: [1],
    buckets: [null, "x", 3, [], { frames: "wide", clips: null, batches: null }],
    findings: [null, "no_caption", { kind: "no_caption", count: "many", names: ["a", null] }],
    sheet: {
      columns: 1,
      cell_width: 9,
      cell_height: 9,
      name_height: 9,
      cells: [null, { name: "b" }],
    },
  };
  assert.deepEqual(table(odd).rows, [["all", "0"]]);
  assert.deepEqual(
    notes(odd).map(({ count, names }) => [count, names]),
    [[0, "a"]],
  );
  assert.deepEqual(
    pictures(odd).map(({ name, about }) => [name, about]),
    [
      ["", ""],
      ["b", "b"],
    ],
  );
});

test("a file whose caption was written since the scan is no longer one without", () => {
  const scanned = {
    findings: [
      { kind: "needs_caption", count: 12, names: ["a.mp4", "b.mp4"] },
      { kind: "enlarged", count: 1, names: ["a.mp4"] },
    ],
  };
  const [left, other] = withCaptions(scanned, new Map([["a.mp4", "a fox"]])).findings;
  assert.deepEqual(left, { kind: "needs_caption", count: 11, names: ["b.mp4"] });
  assert.deepEqual(other, scanned.findings[1]);
  const one = { findings: [{ kind: "no_caption", count: 1, names: ["a.mp4"] }] };
  assert.deepEqual(withCaptions(one, new Map([["a.mp4", "a fox"]])).findings, []);
  assert.deepEqual(withCaptions(one, new Map([["a.mp4", ""]])), one);
  assert.deepEqual(withCaptions({}, new Map()).findings, []);
});

test("measures replace what a scan knew of them, and nothing else", () => {
  const scanned = {
    findings: [
      { kind: "bars", count: 1, names: ["a.mp4"] },
      { kind: "not_measured", count: 2 },
      { kind: "enlarged", count: 1, names: ["a.mp4"] },
    ],
  };
  const measured = [{ kind: "bars", count: 2, names: ["a.mp4", "b.mp4"] }];
  assert.deepEqual(withMeasures(scanned, measured).findings, [scanned.findings[2], measured[0]]);
  assert.deepEqual(withMeasures({}, []).findings, []);
});
