// @ts-check
/**
 * The panel inside TrainLoRA: reads the data of its run, which `face.mjs` shows. All data come from the run's files, so that
 * a reloaded page, a second browser and a restarted server show the same; a status message only triggers reading.
 */

import { Plot } from "../chart/plot.mjs";
import { showPreviews } from "../grid/samples_grid.mjs";
import { Follower } from "../page/pacing.mjs";
import { isMissing, message, samplePath } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { chartFacts } from "../run/chart_facts.mjs";
import { stateText } from "../run/facts.mjs";
import { generateButton } from "../run/generate.mjs";
import { RunHistory } from "../run/history.mjs";
import { lineOf } from "../run/line.mjs";
import { stageName } from "../run/names.mjs";
import { chipOf, StageClock } from "../run/stages.mjs";
import { hasEnded, standingText } from "../run/status.mjs";
import { findsNobody, unreadText } from "../run/trouble.mjs";
import { CHART_MIN, Face } from "./face.mjs";
import { Notifier } from "./notifier.mjs";
import { Player } from "./player.mjs";
import { StatusLine } from "./status_line.mjs";
import { TroubleBox } from "./trouble_box.mjs";

/**
 * @typedef {import("../page/routes.mjs").Routes} Routes
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {import("../page/pacing.mjs").Frames} Frames
 * @typedef {import("../run/status.mjs").Status} Status
 */

/** Milliseconds between two reads of the summary, unless an event triggers one. */
const DETAIL_GAP = 2000;
/** Milliseconds without a message after which a running run is read anyway: another client may receive its messages. */
const QUIET = 5000;
/** Milliseconds after a run's last message in which the server may still call it live, until its process has ended. */
const SETTLING = 10_000;

export class Panel {
  /**
   * @param {{ routes: Routes, frames: Frames, address: (path: string) => string, grew?: () => void, lost?: (run: string) => void,
   *   queue?: () => Promise<void>, copy?: (text: string) => Promise<void>, now?: () => number,
   *   open?: (graph: any, name: string) => Promise<unknown> }} page
   *   `address` turns a route's path into an address for a video element; `grew` is called when `least` has changed; `lost` is
   *   called with a run that no longer exists; `queue` queues the page's graph; `open` opens a graph in a tab
   */
  constructor(page) {
    const { routes, frames, address } = page;
    this.routes = routes;
    this.now = page.now ?? Date.now;
    this.grew = page.grew ?? (() => {});
    this.lost = page.lost ?? (() => {});
    this.copy = page.copy ?? (async () => {});
    /** Id of the run shown. @type {string | null} */
    this.run = null;
    /** Values of run_name at each queueing from this page. @type {Set<string>} */
    this.queued = new Set();
    /** Whether this page has queued the node and no graph has started since. */
    this.isQueued = false;
    this.live = false;
    /** Whether the user has still to choose a folder of clips. */
    this.noFolder = false;
    /** Whether the last request got no response. */
    this.gone = false;
    this.history = new RunHistory();
    this.clock = new StageClock();
    /** @type {Detail | null} */
    this.detail = null;
    this.detailDue = 0;
    this.asked = 0;
    /** Time of the run's last message, in milliseconds. */
    this.endedAt = Number.NEGATIVE_INFINITY;
    /** Whether the run was live, and its end is not shown yet. */
    this.isGoing = false;
    this.notifier = new Notifier();
    this.line = new StatusLine();
    /** Facts of the newest message. @type {import("../run/line.mjs").About | null} */
    this.about = null;
    const look = () => this.refresh();
    this.trouble = new TroubleBox({ ...page, look }, routes, (text) => this.say(text));
    /** Height that shows everything, in CSS pixels. */
    this.least = CHART_MIN;
    this.frames = frames;
    this.draw = this.draw.bind(this);
    this.follower = new Follower(() => this.fetch(), {
      failed: (error) => this.onFailure(error),
    });
    this.plot = new Plot(frames, () => chartFacts(this.history, this.live));
    this.player = new Player(
      (sample) => address(samplePath(this.run ?? "", sample.id)),
      (step) => this.use(step),
      () => this.run && showPreviews(this.run, { routes, address, used: () => this.refresh() }),
    );
    this.face = new Face(this, {
      act: (action, said) => this.act(action, said),
      use: (step) => this.use(step),
      copy: (text) => this.take(text),
      turned: () => this.draw(),
    });
    const { open = async () => {} } = page;
    const generate = generateButton(
      { routes, open },
      () => this.run,
      (text) => this.say(text),
    );
    this.face.use.actions.append(generate);
    this.element = this.face.element;
    const resized = new ResizeObserver(() => frames.ask(this.draw));
    for (const part of this.face.moving) resized.observe(part);
    frames.ask(this.draw);
  }

  /**
   * Shows a run, from its files.
   * @param {string | null} run
   * @param {{ live?: boolean, begun?: boolean, heard?: boolean }} known `live`: a node of this server trains it now; `begun`:
   *   it has files; `heard`: the status line is about this node, not about the previously shown run
   */
  bind(run, { live = false, begun = true, heard = false } = {}) {
    if (this.run !== run) {
      this.run = run;
      this.gone = this.isGoing = false;
      this.history.clear();
      this.clock = new StageClock();
      this.detail = null;
      this.line.forget(heard);
      this.trouble.forget();
      this.player.update([], []);
    }
    this.live = live;
    if (begun) this.refresh();
    this.frames.ask(this.draw);
  }

  /** Reads new lines and the summary. */
  refresh() {
    this.detailDue = 0;
    if (this.run) this.follower.ask();
    this.frames.ask(this.draw);
  }

  /** Reads a live run if no message has come for a while. */
  pulse() {
    const going = this.live || this.gone || this.detail?.state === "running";
    if (going && this.now() - this.asked > QUIET) this.follower.ask();
  }

  /** @param {Status} status */
  onStatus(status) {
    const ended = hasEnded(status.state);
    this.trouble.forget();
    // A new run gets its name before its folder exists.
    const begun = status.state !== "start" || status.metrics_lines !== 0;
    if (status.run && status.run !== this.run) this.bind(status.run, { live: !ended, begun });
    if (status.run) this.live = !ended;
    this.enter(ended ? null : chipOf(status.stage), status);
    const news = [status.state, status.saved_step, status.sample, status.stage].join();
    if (news !== this.news) this.detailDue = 0;
    this.news = news;
    if (ended) this.end(status);
    else {
      this.isGoing ||= Boolean(status.run);
      this.endedAt = Number.NEGATIVE_INFINITY;
    }
    this.write(lineOf(status), ended ? "end" : "progress");
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

  /** Called at the run's last message: reads its files again when the server no longer calls it live. @param {Status} status */
  end(status) {
    const { state, about } = status;
    this.endedAt = this.now();
    if (!state || state === "failed") return; // the node's error has the reason
    this.notify(lineOf(status));
    if (!this.detail) return;
    this.detail = { ...this.detail, state, step: about?.step ?? this.detail.step, live: false };
  }

  /** Called when the trained run has ended. @param {string} how */
  notify(how) {
    if (this.isGoing && this.run) this.notifier.say(this.run, how);
    this.isGoing = false;
  }

  /** @param {string | null} stage name of a chip @param {Status | null} [message] its message */
  enter(stage, message = null) {
    this.about = message && { kind: "", ...message.about, stage: message.stage };
    if (stage !== this.clock.active && stage) {
      this.face.speak(`${stageName(stage)} ${this.run ?? ""}`);
    }
    this.clock.enter(stage, this.now());
    this.frames.ask(this.draw);
  }

  /**
   * Called when the graph of this node starts, with earlier nodes, and when it ends, perhaps without this node.
   * @param {boolean} on
   */
  waits(on) {
    if (on ? !this.isQueued || this.live : this.about?.kind !== "waits") return;
    this.isQueued = false;
    this.about = on ? { kind: "waits" } : null;
    this.frames.ask(this.draw);
  }

  /** Called when the graph's execution has ended. @param {string} failed title of the failed node, or empty */
  rest(failed) {
    const { active } = this.clock;
    const waited = active === "Cache" || ["waits", "encoded"].includes(this.about?.kind ?? "");
    this.enter(null);
    if (waited && failed) this.about = { kind: "blocked", node: failed };
  }

  /** @param {boolean} on whether the user has still to choose a folder of clips */
  needsFolder(on) {
    if (on === this.noFolder) return;
    this.noFolder = on;
    this.frames.ask(this.draw);
  }

  /**
   * Shows a text in the status line.
   * @param {string} text
   * @param {import("../run/status.mjs").Origin} origin
   */
  write(text, origin = "end") {
    this.line.write(text, origin);
    this.frames.ask(this.draw);
  }

  /** @returns {Promise<boolean>} whether to read again at once */
  async fetch() {
    const run = this.run;
    this.reading = run;
    this.asked = this.now();
    if (!run) return false;
    const since = this.history.lines;
    const answer = await this.routes.metrics(run, since);
    this.gone = false;
    if (run !== this.run) return true;
    const more = this.history.take(since, answer);
    if (!more) this.clock.read(this.history, this.asked);
    this.frames.ask(this.draw);
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
    if (detail.live && this.now() - this.endedAt < SETTLING) {
      this.detailDue = 0;
      this.follower.ask();
      return;
    }
    this.detail = detail;
    this.live = Boolean(detail.live);
    if (detail.state === "running") this.isGoing = true;
    else this.notify(stateText(detail));
    this.player.take(detail, this.history);
    this.line.summarize(standingText(detail), this.live);
    this.frames.ask(this.draw);
  }

  /** @param {unknown} error in reading the run */
  onFailure(error) {
    if (this.reading !== this.run) return;
    this.detailDue = 0;
    const isNews = !this.gone || !findsNobody(error);
    this.gone = findsNobody(error);
    // The folder of a new run is created after its name is sent.
    const begins = this.live && !this.detail;
    if (this.run && isMissing(error) && !begins) {
      const run = this.run;
      this.bind(null);
      this.lost(run);
    } else if (isNews) this.say(unreadText(error), "error");
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
      this.say(told(message(error)));
    }
  }

  /** Called when the node failed. @param {string} reason from the server */
  onBroken(reason) {
    this.live = false;
    this.trouble.broke = reason;
    this.write(t("failed"));
    this.notify(t("failed: {reason}", { reason: told(reason) }));
    this.face.speak(t("failed: {reason}", { reason: told(reason) }));
    this.refresh();
  }

  /** Copies a text to the clipboard. @param {string} text @returns {Promise<boolean>} whether it worked */
  async take(text) {
    try {
      await this.copy(text);
      this.face.speak(t("Copied."));
      return true;
    } catch (error) {
      this.say(told(message(error)));
      return false;
    }
  }

  /** @param {number} step the saved step that becomes the run's LoRA */
  async use(step) {
    if (!this.run) return;
    try {
      await this.routes.use(this.run, step);
      this.say(t("Step {step} is the run's LoRA now.", { step }));
      this.refresh();
    } catch (error) {
      this.say(told(message(error)));
    }
  }

  /**
   * Shows a message in the status line until a newer one comes, and announces it to screen readers.
   * @param {string} text
   * @param {import("../run/status.mjs").Origin} origin
   */
  say(text, origin = "said") {
    this.face.speak(text);
    this.write(text, origin);
  }

  draw() {
    this.face.draw(this, this.now());
    this.frames.once(this.plot.draw);
    const least = this.face.measure() ?? this.least;
    if (least === this.least) return;
    this.least = least;
    this.grew();
  }
}
