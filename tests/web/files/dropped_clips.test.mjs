import assert from "node:assert/strict";
import { test } from "node:test";

import {
  fallen,
  mayTake,
  newFolder,
  planned,
  take,
} from "../../../web/js/lib/files/dropped_clips.mjs";

const NOW = new Date("2026-03-04T05:06:07Z");
const file = (name, size = 9) => ({ name, size });
const files = (...names) => names.map((name) => file(name));

/** A server's input folder, and a node that reads a folder of it. */
function doors({ taken = [], most = 100, fails = "", renames = "", linked = false } = {}) {
  const seen = { uploads: [], said: [], folder: "" };
  return {
    seen,
    taken: async () => taken,
    upload: async ({ name }, folder) => {
      if (name === fails) throw new Error(`${name}: 413 Request Entity Too Large`);
      seen.uploads.push(`${folder}/${name}`);
      return name === renames ? "other (1).mp4" : name;
    },
    most: () => most,
    chosen: async (folder) => {
      if (!linked) seen.folder = folder;
      return !linked;
    },
    say: (text, bad = false) => seen.said.push([text, bad]),
  };
}

test("clips, stills and their captions are taken, and what is left out is known", () => {
  const { files: taken, left } = planned(
    [...files("a.MP4", "a.txt", "b.png", "c.heic", ".hidden.mp4", "A.mp4"), file("big.mov", 101)],
    100,
  );
  assert.deepEqual(
    taken.map(({ name }) => name),
    ["a.MP4", "a.txt", "b.png"],
  );
  assert.deepEqual(left, { kind: ["c.heic", ".hidden.mp4"], large: ["big.mov"], twice: ["A.mp4"] });
  assert.deepEqual(planned(files("a.txt", "b.json"), 100).files, []);
});

test("a folder is always a new one, whatever it is called", () => {
  assert.equal(newFolder("", [], NOW), "dropped_2026-03-04_050607");
  assert.equal(newFolder("My clips", ["my CLIPS", "My clips_2"], NOW), "My clips_3");
  assert.equal(newFolder("../..\\x:y<b>", [], NOW), "_.._x_y_b_");
  assert.equal(newFolder(" .. ", [], NOW), "dropped_2026-03-04_050607");
  assert.equal(newFolder("猫".repeat(99), [], NOW).length, 60);
});

test("what fell is uploaded into one folder, which the node then reads", async () => {
  const place = doors();
  const fell = { files: files("a.mp4", "a.txt", "x.exe"), folder: "cats" };
  assert.equal(await take(fell, place, NOW), true);
  assert.deepEqual(place.seen.uploads, ["cats/a.mp4", "cats/a.txt"]);
  assert.equal(place.seen.folder, "cats");
  assert.deepEqual(place.seen.said.at(-1), [
    "2 files are in input/cats. Run to see what will be trained. Skipped, because they are not clips, stills or captions: x.exe.",
    false,
  ]);
});

test("files of another kind stay ComfyUI's, and a folder without clips says so", async () => {
  const place = doors();
  assert.equal(await take({ files: files("a.toml"), folder: "" }, place, NOW), false);
  assert.deepEqual(place.seen.said, []);
  assert.equal(await take({ files: files("a.toml"), folder: "x" }, place, NOW), true);
  assert.deepEqual(place.seen.said, [["x itself contains no clip or still.", true]]);
});

test("a file that is too large, one that fails and one that is there already are said", async () => {
  const large = doors();
  await take({ files: [file("a.mp4", 101)], folder: "" }, large, NOW);
  assert.match(large.seen.said.at(-1)[0], /^Too large to upload: a[.]mp4[.] Copy them into input/);
  assert.deepEqual([large.seen.uploads, large.seen.folder], [[], ""]);

  const torn = doors({ fails: "b.mp4" });
  await take({ files: files("a.mp4", "b.mp4", "c.mp4"), folder: "x" }, torn, NOW);
  assert.deepEqual(torn.seen.said.at(-1), [
    "1 of 3 files are in input/x, then: b.mp4: 413 Request Entity Too Large. Run to see what will be trained.",
    true,
  ]);
  const renamed = doors({ renames: "a.mp4" });
  await take({ files: files("a.mp4"), folder: "x" }, renamed, NOW);
  assert.match(renamed.seen.said.at(-1)[0], /^0 of 1 files .* a[.]mp4 already exists/);
  assert.equal(renamed.seen.folder, "");
});

test("a folder that comes from a link stays, and that is said", async () => {
  const place = doors({ linked: true });
  await take({ files: files("a.mp4"), folder: "x" }, place, NOW);
  assert.match(place.seen.said.at(-1)[0], /The folder of this node comes from a link/);
});

test("of a folder that fell the files directly in it are read, however many calls it takes", async () => {
  const one = (name) => ({ isFile: true, name, file: (done) => done(file(name)) });
  const inside = [[one("a.mp4")], [one("b.mp4"), { isDirectory: true, name: "deep" }], []];
  const folder = {
    isDirectory: true,
    name: "cats",
    createReader: () => ({ readEntries: (done) => done(inside.shift()) }),
  };
  const item = (entry) => ({ webkitGetAsEntry: () => entry });
  const carried = { files: files("cats"), items: [item(folder), item(one("c.txt")), item(null)] };
  assert.equal(mayTake(carried), true);
  assert.deepEqual(await fallen(carried), {
    files: files("a.mp4", "b.mp4", "c.txt"),
    folder: "cats",
  });
  assert.equal(mayTake({ files: files("a.toml"), items: [item(one("a.toml"))] }), false);
  assert.equal(mayTake(null), false);
});
