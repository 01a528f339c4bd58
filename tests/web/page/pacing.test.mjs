import assert from "node:assert/strict";
import { test } from "node:test";

import { Follower, Frames } from "../../../web/js/lib/page/pacing.mjs";

/** Time and timers that move only when told. */
class Time {
  constructor() {
    this.now = 0;
    this.tasks = [];
  }

  later = (task, ms) => this.tasks.push({ task, at: this.now + ms });

  async pass(ms) {
    const end = this.now + ms;
    for (;;) {
      await settle();
      const due = this.tasks.filter((one) => one.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!due) break;
      this.tasks = this.tasks.filter((one) => one !== due);
      this.now = due.at;
      due.task();
    }
    this.now = end;
    await settle();
  }
}

const settle = () => new Promise((done) => setImmediate(done));

function follower(work, options = {}) {
  const time = new Time();
  return { time, it: new Follower(work, { now: () => time.now, later: time.later, ...options }) };
}

test("a part that is asked for by itself and drawn with the whole is drawn once in a frame", () => {
  const asked = [];
  const frames = new Frames((draw) => asked.push(draw));
  const drawn = [];
  const part = () => drawn.push("part");
  const whole = () => frames.once(part);
  for (const order of [
    [part, whole],
    [whole, part],
  ]) {
    for (const draw of order) frames.ask(draw);
    asked.pop()();
  }
  assert.deepEqual(drawn, ["part", "part"], "once in each of two frames");
  frames.once(part);
  assert.equal(drawn.length, 3, "outside of a frame it is drawn at once");
});

test("10,000 requests to draw are one draw per frame", () => {
  const asked = [];
  const frames = new Frames((draw) => asked.push(draw));
  let draws = 0;
  const draw = () => {
    draws += 1;
  };
  for (let i = 0; i < 10_000; i++) frames.ask(draw);
  assert.equal(asked.length, 1);
  asked.shift()();
  assert.equal(draws, 1);
  frames.ask(draw);
  assert.equal(asked.length, 1);
});

test("what a draw asks for waits for the next frame", () => {
  const asked = [];
  const frames = new Frames((draw) => asked.push(draw));
  frames.ask(function again() {
    frames.ask(again);
  });
  asked.shift()();
  assert.equal(asked.length, 1);
});

test("10,000 events in a second are at most five requests, never two at once", async () => {
  let running = 0;
  let requests = 0;
  const { time, it } = follower(async () => {
    requests += 1;
    running += 1;
    assert.equal(running, 1);
    await settle();
    running -= 1;
  });
  for (let i = 0; i < 100; i++) {
    for (let n = 0; n < 100; n++) it.ask();
    await time.pass(10);
  }
  assert.ok(requests >= 4 && requests <= 5, String(requests));
});

test("a question that comes while an answer is awaited is asked afterwards", async () => {
  let requests = 0;
  const { time, it } = follower(async () => {
    requests += 1;
  });
  it.ask();
  it.ask();
  await time.pass(1000);
  assert.equal(requests, 2);
});

test("work that says there is more goes on by itself", async () => {
  let pages = 3;
  const { time, it } = follower(async () => {
    pages -= 1;
    return pages > 0;
  });
  it.ask();
  await time.pass(2000);
  assert.equal(pages, 0);
});

test("a failure is told, tried again a few times, and then left until somebody asks", async () => {
  const told = [];
  let tries = 0;
  const { time, it } = follower(
    async () => {
      tries += 1;
      throw new Error("gone");
    },
    { failed: (error) => told.push(error.message) },
  );
  it.ask();
  await time.pass(600_000);
  assert.equal(tries, 4);
  assert.deepEqual(new Set(told), new Set(["gone"]));
  it.ask();
  await time.pass(10);
  assert.equal(tries, 5);
});
