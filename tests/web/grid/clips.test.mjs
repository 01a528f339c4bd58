import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { InStep } from "../../../web/js/lib/grid/in_step.mjs";
import { AT_ONCE, Posters } from "../../../web/js/lib/grid/posters.mjs";

/** What a video element does here. */
class Video {
  readyState = 0;
  currentTime = 5;
  plays = 0;
  pause() {}
  load() {}
  removeAttribute() {
    this.src = "";
  }
  async play() {
    this.plays += 1;
  }
  loaded() {
    this.readyState = 2;
    this.onloadeddata?.();
  }
}

function posters() {
  const made = [];
  const all = new Posters(() => made[made.push(new Video()) - 1]);
  const taken = [];
  const want = (name) =>
    all.want(name, {
      taken: (video) => taken.push(`${name} ${video.src}`),
      failed: () => taken.push(`not ${name}`),
    });
  return { made, all, taken, want };
}

test("of 400 first frames a few are read at once, in their order, and each is let go", () => {
  const { made, taken, want } = posters();
  for (let n = 0; n < 400; n += 1) want(`clip${n}`);
  let most = 0;
  for (let n = 0; n < 400; n += 1) {
    most = Math.max(most, made.filter(({ src }) => src).length);
    made[n].loaded();
  }
  assert.equal(most, AT_ONCE);
  assert.equal(taken.length, 400);
  assert.equal(taken[7], "clip7 clip7#t=0.1");
  assert.deepEqual([...new Set(made.map(({ src }) => src))], [""]);
});

test("a clip that left the view is not read, and one that cannot be read or never comes makes way", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { made, all, taken, want } = posters();
  for (const name of "abcdefgh") want(name);
  all.forget("e");
  made[0].onerror();
  made[1].loaded();
  assert.deepEqual(
    made.slice(4).map(({ src }) => src),
    ["f#t=0.1", "g#t=0.1"],
  );
  mock.timers.tick(60_000);
  assert.deepEqual(taken.slice(0, 2), ["not a", "b b#t=0.1"]);
  assert.equal(made.at(-1).src, "h#t=0.1", "the four that hang made way");
  mock.timers.reset();
});

test("clips begin together, and again when the longest has ended", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const inStep = new InStep();
  const [one, other, late] = [new Video(), new Video(), new Video()];
  for (const video of [one, other, late]) inStep.add(video);
  one.loaded();
  other.loaded();
  assert.equal(one.plays, 0, "the others may load yet");
  mock.timers.tick(1000);
  assert.deepEqual([one.plays, other.plays, one.currentTime], [1, 1, 0]);
  late.loaded();
  one.onended();
  assert.deepEqual([one.plays, late.plays], [1, 0]);
  other.onended();
  assert.deepEqual([one.plays, other.plays, late.plays], [2, 2, 1]);
  inStep.remove(late);
  inStep.remove(one);
  other.onended();
  assert.deepEqual([one.plays, other.plays, late.plays], [2, 3, 1]);
  mock.timers.reset();
});
