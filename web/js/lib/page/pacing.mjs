// @ts-check
/** Rate limits: one draw per animation frame, one request at a time. Pure but for its timers. */

/** Calls each draw function at most once per animation frame. */
export class Frames {
  /** @param {(draw: () => void) => void} request usually requestAnimationFrame */
  constructor(request) {
    this.request = request;
    /** @type {Set<() => void>} */
    this.waiting = new Set();
    /** Functions called in the current frame; null between frames. @type {Set<() => void> | null} */
    this.drawn = null;
  }

  /** @param {() => void} draw must be the same function object each time */
  ask(draw) {
    if (!this.waiting.size) this.request(() => this.run());
    this.waiting.add(draw);
  }

  run() {
    const now = [...this.waiting];
    this.waiting.clear();
    this.drawn = new Set();
    try {
      for (const draw of now) this.once(draw);
    } finally {
      this.drawn = null;
    }
  }

  /** Calls `draw` during another draw, unless this frame has called it already. @param {() => void} draw */
  once(draw) {
    if (this.drawn?.has(draw)) return;
    this.drawn?.add(draw);
    draw();
  }
}

/**
 * Runs asynchronous work on request, never twice at once, and at most once in `gap` milliseconds. A request during the work
 * runs it once more. Failed work is retried with growing pauses.
 */
export class Follower {
  /**
   * @param {() => Promise<boolean | void>} work resolves to true to run again at once
   * @param {{ gap?: number, now?: () => number, later?: (task: () => void, ms: number) => unknown,
   *   failed?: (error: unknown) => void }} options
   */
  constructor(work, { gap = 250, now = Date.now, later = setTimeout, failed = () => {} } = {}) {
    this.work = work;
    this.gap = gap;
    this.now = now;
    this.later = (/** @type {() => void} */ task, /** @type {number} */ ms) => later(task, ms);
    this.failed = failed;
    this.began = Number.NEGATIVE_INFINITY;
    /** idle, waiting for the gap, or busy. */
    this.state = "idle";
    this.again = false;
    this.failures = 0;
  }

  ask() {
    if (this.state === "busy") this.again = true;
    if (this.state !== "idle") return;
    this.wait(Math.max(0, this.began + this.gap - this.now()));
  }

  /** @param {number} ms */
  wait(ms) {
    this.state = "waiting";
    if (ms > 0) this.later(() => this.run(), ms);
    else this.run();
  }

  async run() {
    this.state = "busy";
    this.again = false;
    this.began = this.now();
    try {
      this.again = Boolean(await this.work()) || this.again;
      this.failures = 0;
    } catch (error) {
      this.failures += 1;
      this.failed(error);
    }
    this.state = "idle";
    if (this.failures) this.retry();
    else if (this.again) this.ask();
  }

  retry() {
    if (this.failures <= 3) this.wait(this.gap * 4 ** this.failures);
    else this.failures = 0;
  }
}
