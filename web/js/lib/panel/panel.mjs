// @ts-check
/**
 * The panel inside TrainLoRA: stages, numbers, memory, the loss, previews, buttons. It draws what a run's files say, so a
 * reloaded page, a second browser and a restarted server show the same; a status message only says that there is more.
 */

import { Plot } from "../chart/plot.mjs";
import { button, element, enable, fill, mark, write } from "../page/dom.mjs";
import { Follower } from "../page/pacing.mjs";
import { samplePath } from "../page/routes.mjs";
import { t } from "../page/words.mjs";
import { chartText, facts, memoryBars, stateText } from "../run/facts.mjs";
import { clock } from "../run/format.mjs";
import { RunHistory } from "../run/history.mjs";
import { expertName, stageName } from "../run/names.mjs";
import { chipOf, STAGES, StageClock } from "../run/stages.mjs";
import { chip, memoryBar, number } from "./parts.mjs";
import { Player } from "./player.mjs";

/**
 * @typedef {import("../page/routes.mjs").Routes} Routes
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {import("../page/pacing.mjs").Frames} Frames
 * @typedef {import("../run/status.mjs").Status} Status
 */

/** Everything but the curve changes slowly: milliseconds between two looks at it while nothing particular happened. */
const DETAIL_GAP = 2000;
const CHART_MIN = 150;
// As in the style sheet.
const GAP = 6;
const PADDING = 8;
// What the server says in its own words: English.
const STEP_TEXT = /^step \d+\/\d+ /;

export class Panel {
  /**
   * @param {{ routes: Routes, frames: Frames, address: (path: string) => string, grew?: () => void,
   *   now?: () => number }} page
   *   `address` makes a route's path one that a video element can load; `grew` is told when `least` has changed
   */
  constructor({ routes, frames, address, grew = () => {}, now = Date.now }) {
    this.routes = routes;
    this.now = now;
    this.grew = grew;
    /** Id of the run shown. @type {string | null} */
    this.run = null;
    this.live = false;
    this.history = new RunHistory();
    this.clock = new StageClock();
    /** @type {Detail | null} */
    this.detail = null;
    this.detailDue = 0;
    /** What the status line says; empty while nothing is known. */
    this.text = "";
    /** Height that shows everything, in CSS pixels. */
    this.least = CHART_MIN;
    this.frames = frames;
    this.draw = this.draw.bind(this);
    this.follower = new Follower(() => this.fetch(), {
      failed: (error) =>
        this.say(t("The run cannot be read: {reason}", { reason: message(error) })),
    });
    this.plot = new Plot(frames, () => this.view());
    this.player = new Player((sample) => address(samplePath(this.run ?? "", sample.id)));
    this.build();
    const resized = new ResizeObserver(() => frames.ask(this.draw));
    for (const part of [this.element, this.player.element]) resized.observe(part);
    frames.ask(this.draw);
  }

  build() {
    this.name = element("strong", { class: "wan-name" });
    this.status = element("div", { class: "wan-status" }, t("idle"));
    this.chips = new Map(Object.keys(STAGES).map((name) => [name, chip(stageName(name))]));
    this.numbers = element("dl", { class: "wan-facts" });
    this.memory = element("div", { class: "wan-memory" });
    this.spoken = element("div", { class: "wan-spoken", role: "status", "aria-live": "polite" });
    const stages = [...this.chips.values()].map((one) => one.element);
    this.left = element("div", { class: "wan-left" }, this.numbers, this.memory, this.plot.element);
    this.body = element("div", { class: "wan-body" }, this.left, this.player.element);
    this.element = element(
      "section",
      { class: "wan-panel", "aria-label": t("Training run") },
      element("ol", { class: "wan-stages", "aria-label": t("Stages") }, ...stages),
      element("div", { class: "wan-head" }, this.name, this.status),
      this.body,
      this.buildButtons(),
      this.spoken,
    );
  }

  buildButtons() {
    const press =
      (/** @type {"stop" | "save" | "sample" | "open"} */ action, /** @type {string} */ said) =>
      () =>
        this.act(action, said);
    this.liveButtons = {
      stop: button(
        t("Stop and keep"),
        t("Save, stop, and let the graph go on. Queue again to resume."),
        press("stop", t("Stopping …")),
      ),
      save: button(
        t("Save now"),
        t("Save after this step, and train on."),
        press("save", t("Saving …")),
      ),
      sample: button(
        t("Preview now"),
        t("Render a preview after this step, and train on."),
        press("sample", t("Rendering a preview …")),
      ),
    };
    this.open = button(
      t("Open folder"),
      t("Show the run's folder on the computer ComfyUI runs on."),
      press("open", t("Folder opened.")),
    );
    return element(
      "div",
      { class: "wan-buttons", role: "group", "aria-label": t("Steer the run") },
      ...Object.values(this.liveButtons),
      this.open,
    );
  }

  /**
   * Show a run, from its files.
   * @param {string | null} run
   * @param {boolean} live whether a node of this server trains it now
   * @param {boolean} begun whether it has files yet
   */
  bind(run, live = false, begun = true) {
    if (this.run !== run) {
      this.run = run;
      this.history.clear();
      this.detail = null;
      this.text = "";
      this.player.update([], []);
    }
    this.live = live;
    if (begun) this.refresh();
    this.frames.ask(this.draw);
  }

  /** Read what is new, the summary too. */
  refresh() {
    this.detailDue = 0;
    if (this.run) this.follower.ask();
    this.frames.ask(this.draw);
  }

  /** @param {Status} status */
  onStatus(status) {
    const ended = ["done", "stopped", "failed"].includes(status.state ?? "");
    // A new run is named before its folder is made.
    const begun = status.state !== "start" || status.metrics_lines !== 0;
    if (status.run && status.run !== this.run) this.bind(status.run, !ended, begun);
    if (status.run) this.live = !ended;
    this.enter(ended ? null : chipOf(status.stage));
    const news = [status.state, status.saved_step, status.sample, status.stage].join();
    if (news !== this.news) this.detailDue = 0;
    this.news = news;
    this.write(status.text);
    if (
      this.run &&
      begun &&
      (this.detailDue === 0 ||
        (status.metrics_lines ?? Infinity) > this.history.lines ||
        this.now() >= this.detailDue)
    ) {
      this.follower.ask();
    }
  }

  /** @param {string | null} stage name of a chip */
  enter(stage) {
    if (stage !== this.clock.active && stage) {
      write(this.spoken, `${stageName(stage)} ${this.run ?? ""}`);
    }
    this.clock.enter(stage, this.now());
    this.frames.ask(this.draw);
  }

  /**
   * The status line.
   * @param {string} text
   */
  write(text) {
    this.text = text;
    this.frames.ask(this.draw);
  }

  /** @returns {Promise<boolean>} whether there is more to read at once */
  async fetch() {
    const run = this.run;
    if (!run) return false;
    const since = this.history.lines;
    const answer = await this.routes.metrics(run, since);
    if (run !== this.run) return true;
    const more = this.history.take(since, answer);
    if (this.now() >= this.detailDue) {
      this.detailDue = this.now() + DETAIL_GAP;
      const detail = await this.routes.detail(run);
      if (run !== this.run) return true;
      this.show(detail);
    }
    this.frames.ask(this.draw);
    return more;
  }

  /** @param {Detail} detail */
  show(detail) {
    this.detail = detail;
    this.live = Boolean(detail.live);
    this.player.update(detail.samples ?? [], detail.saves ?? []);
    if (!this.text) this.text = stateText(detail);
  }

  /**
   * @param {"stop" | "save" | "sample" | "open"} action
   * @param {string} said
   */
  async act(action, said) {
    if (!this.run) return;
    try {
      await this.routes.act(this.run, action);
      this.say(said);
    } catch (error) {
      this.say(message(error));
    }
  }

  /**
   * Words for everyone: in the status line until the next message, and to screen readers.
   * @param {string} text
   */
  say(text) {
    write(this.spoken, text);
    this.write(text);
  }

  draw() {
    write(this.name, this.run ?? "");
    const text = this.text || t("idle");
    if (this.status.textContent !== text) {
      this.status.textContent = text;
      this.status.title = text;
      // The numbers below say the same, and more.
      this.status.toggleAttribute("data-step", STEP_TEXT.test(text));
    }
    for (const [name, one] of this.chips) this.drawChip(name, one);
    this.drawNumbers();
    this.drawMemory();
    for (const [action, made] of Object.entries(this.liveButtons)) {
      enable(made, this.live && (action !== "sample" || this.detail?.can_preview !== false));
    }
    enable(this.open, this.run !== null);
    this.plot.draw();
    const least = this.measure();
    if (least === this.least) return;
    this.least = least;
    this.grew();
  }

  /** @param {string} name @param {ReturnType<typeof chip>} one */
  drawChip(name, one) {
    const active = name === this.clock.active;
    const seconds = this.clock.seconds(name, this.now());
    const spent =
      name === "Train" && this.history.trainSeconds ? this.history.trainSeconds : seconds;
    write(one.time, clock(spent));
    mark(one.element, "data-state", active ? "active" : spent === null ? "ahead" : "seen");
    if (active) mark(one.element, "aria-current", "step");
    else one.element.removeAttribute("aria-current");
  }

  drawNumbers() {
    const all = facts(this.history, this.detail);
    const key = all.map((fact) => fact.name).join();
    if (this.numbers.dataset.names !== key) {
      this.numbers.dataset.names = key;
      fill(this.numbers, ...all.map(number));
    }
    all.forEach((fact, index) => {
      const value = this.numbers.children[index].lastElementChild;
      if (value) write(value, fact.value);
    });
  }

  drawMemory() {
    const bars = memoryBars(this.detail?.memory);
    const key = JSON.stringify(bars);
    if (this.memory.dataset.known === key) return;
    this.memory.dataset.known = key;
    fill(this.memory, ...bars.map(memoryBar));
  }

  /** What the chart shows. @returns {import("../chart/plot.mjs").Facts} */
  view() {
    const history = this.history;
    const names = [...new Set([...history.losses.keys(), ...history.evaluations.keys()])];
    // Evaluations do not name an expert yet; those of a run with one belong to it.
    const only = names.filter((name) => name !== "").length === 1;
    const shown = only ? names.filter((name) => name !== "") : names;
    return {
      lines: shown.map((name) => ({
        name: expertName(name),
        loss: history.losses.get(name),
        evaluation:
          history.evaluations.get(name) ?? (only ? history.evaluations.get("") : undefined),
      })),
      saves: history.saves.points,
      samples: history.samples.points,
      timesteps: history.timesteps,
      steps: this.live ? (history.newest?.steps ?? 0) : 0,
      summary: chartText(history),
      empty: t("The loss appears here once the run trains."),
    };
  }

  /** Height everything needs at this width, with the chart at its least. */
  measure() {
    if (!this.element.clientWidth) return this.least;
    const chart = CHART_MIN - this.plot.canvas.clientHeight;
    const left =
      natural(this.left) - this.plot.element.offsetHeight + natural(this.plot.element) + chart;
    const player = this.player.element.hidden ? 0 : natural(this.player.element) + GAP;
    const beside = getComputedStyle(this.body).flexDirection === "row";
    const body = beside ? Math.max(left, player) : left + player;
    return Math.ceil(natural(this.element) - this.body.offsetHeight + body + 2 * PADDING);
  }
}

/** Heights of what is inside, one below the other. @param {HTMLElement} place */
function natural(place) {
  const shown = [...place.children].map((child) => /** @type {HTMLElement} */ (child).offsetHeight);
  const rows = shown.filter((height) => height > 1);
  return rows.reduce((sum, height) => sum + height + GAP, -GAP);
}

/** @param {unknown} error */
function message(error) {
  return error instanceof Error ? error.message : String(error);
}
