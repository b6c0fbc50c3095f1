// BullMQ. The protocol is that of protocol.py.

import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const require = createRequire(path.join(process.env.COMPARE_MODULES, "package.json"));
const { Queue, QueueEvents, Worker } = require("bullmq");
const version = require("bullmq/package.json").version;

const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    kind: { type: "string", default: "nothing" },
    count: { type: "string", default: "1" },
    seconds: { type: "string", default: "3600" },
    bytes: { type: "string", default: "16" },
    groups: { type: "string", default: "0" },
    group: { type: "string", default: "" },
    bulk: { type: "boolean", default: false },
    warm: { type: "string", default: "0" },
    concurrency: { type: "string", default: "50" },
    board: { type: "string", default: "." },
  },
});
const [url, command] = positionals;
const target = new URL(url);
const connection = { host: target.hostname, port: Number(target.port), maxRetriesPerRequest: null };
const BULK = 1000;
// Text that no store can compress.
const random = crypto.createHash("shake256", { outputLength: Number(given.bytes) }).update("1").digest("base64");
const data = { payload: random.slice(0, Number(given.bytes)) };

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

// A process without shared memory writes what it has counted from time to time; the times in there are exact.
class Board {
  #count = 0n;
  #first = 0n;
  #last = 0n;
  #written = 0n;

  constructor() {
    this.file = fs.openSync(path.join(given.board, `${process.pid}.slot`), "w");
    setInterval(() => this.#write(), 5).unref();
  }

  mark() {
    this.#last = process.hrtime.bigint();
    if (this.#count === 0n) this.#first = this.#last;
    this.#count += 1n;
  }

  held() {
    const file = path.join(given.board, "events");
    const first = !fs.existsSync(file) || !fs.readFileSync(file, "ascii").includes(" hold");
    fs.appendFileSync(file, `${process.hrtime.bigint()} ${process.pid} hold\n`);
    return first;
  }

  #write() {
    if (this.#count === this.#written) return;
    const slot = Buffer.alloc(24);
    [this.#count, this.#first, this.#last].forEach((value, at) => slot.writeBigInt64LE(value, at * 8));
    fs.writeSync(this.file, slot, 0, 24, 0);
    this.#written = this.#count;
  }
}

async function enqueue() {
  const queue = new Queue("compare", { connection });
  const count = Number(given.count);
  await queue.waitUntilReady();
  for (let n = 0; n < Number(given.warm); n++) await queue.add(given.kind, data);
  const began = seconds();
  const until = began + Number(given.seconds);
  let made = 0;
  while (made < count && seconds() < until) {
    if (given.bulk) {
      const jobs = Array.from({ length: Math.min(BULK, count - made) }, () => ({ name: given.kind, data }));
      await queue.addBulk(jobs);
      made += jobs.length;
    } else {
      await queue.add(given.kind, data);
      made += 1;
    }
  }
  say({ count: made, seconds: seconds() - began });
  await queue.close();
}

async function call() {
  const once = async () => {
    const job = await queue.add(given.kind, data);
    await job.waitUntilFinished(events, 10_000);
  };
  const queue = new Queue("compare", { connection });
  const events = new QueueEvents("compare", { connection });
  await Promise.all([queue.waitUntilReady(), events.waitUntilReady()]);
  // Nothing tells that it reads events; the first ones might come before.
  await new Promise((resolve) => setTimeout(resolve, 500));
  const milliseconds = [];
  for (let n = 0; n < Number(given.warm); n++) await once();
  const until = seconds() + Number(given.seconds);
  while (milliseconds.length < Number(given.count) && seconds() < until) {
    const began = seconds();
    await once();
    milliseconds.push((seconds() - began) * 1000);
  }
  say({ milliseconds });
  await Promise.all([queue.close(), events.close()]);
}

async function work() {
  const board = new Board();
  say({ ready: true });
  await new Promise((resolve) => process.stdin.once("data", resolve));
  const handle = async (job) => {
    if (job.name === "hold" && board.held()) await new Promise((resolve) => setTimeout(resolve, 3_600_000));
    board.mark();
    return job.data.payload.length;
  };
  const worker = new Worker("compare", handle, { connection, concurrency: Number(given.concurrency) });
  worker.on("error", (error) => console.error(error));
  process.once("SIGTERM", async () => {
    await worker.close(true);
    process.exit(0);
  });
}

const commands = {
  info: async () =>
    say({
      versions: { node: process.versions.node, bullmq: version },
      lacks: {
        steps: "no durable steps",
        nap: "no durable steps",
        wait: "no durable waits",
        turn: "groups are in BullMQ Pro",
      },
      setup: false,
      settings: { lock: "30 s, looked at every 30 s (default)", results: "kept (default)" },
    }),
  setup: async () => {},
  enqueue,
  call,
  work,
};
await commands[command]();
