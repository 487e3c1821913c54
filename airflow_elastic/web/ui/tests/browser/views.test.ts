// Each view shows what the server says.
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import type { Page } from "playwright-core";
import { type Session, start } from "./browser.ts";

let session: Session;
before(async () => {
  session = await start();
});
after(() => session.close());

let opened: Page[] = [];
afterEach(async () => {
  await Promise.all(opened.map((page) => page.close())); // an open page asks on and on
  opened = [];
});

const see = async (query: string, ...words: (string | RegExp)[]) => {
  const page = await session.open(query);
  opened.push(page);
  for (const word of words) await page.getByText(word).first().waitFor();
  return page;
};

test("the list shows runs and totals, sorts, filters, and leads to a run", async () => {
  const page = await see("", "gpt-medium-pretrain", "Workers in use", "thirty-days");
  await page.getByRole("button", { name: "Goodput" }).click();
  await page.getByRole("columnheader", { name: "Goodput" }).and(page.locator("[aria-sort=descending]")).waitFor();
  await page.getByRole("button", { name: /^Failed/ }).click();
  await page.getByText("gpt-medium-pretrain").waitFor({ state: "detached" });
  await page.getByRole("link", { name: "resnet-imagenet" }).click();
  await page.getByRole("heading", { name: "Why it failed" }).waitFor();
  assert.match(page.url(), /run=run%2Ffailed/);
});

test("the overview says how it is, how far it is, what it would lose, and draws a chart of each kind", async () => {
  const page = await see("?run=run/running", "Training, all 8 workers at work", /a failure now loses/, /done about/, "reports since the best accuracy, 0.9130 at step 31,200", "Past runs: 3 proposals", "workers.count: 6 instead of 8", /^5 runs: with 6 workers a step takes/, /began with promotion 3 of s3:\/\/models\/vit/);
  for (const name of ["Loss", "accuracy", "Samples per second", "Step time", "World size", "Goodput"]) {
    await page.getByRole("img", { name: new RegExp(`^${name} over time: now `) }).waitFor();
  }
  assert.equal(await page.locator(".el-lane-attempt").count(), 3);
});

test("a recovery shows its parts and their seconds, in colours that have the same meaning in the bar of the whole run", async () => {
  const page = await see("?run=run/running", "first step after 9.8 s");
  const recovery = page.locator(".el-recovery").first();
  for (const part of ["noticed after 1.2 s", "decided in 150 ms", "met in 2.1 s", "restored in 1.9 s", "started in 4.4 s"]) {
    await recovery.getByText(part).waitFor();
  }
  const colour = (name: string) => page.locator(`i.${name}`).first().evaluate((dot) => getComputedStyle(dot).backgroundColor);
  for (const part of ["restoring", "starting"]) assert.equal(await colour(`el-recovery-${part}`), await colour(`el-time-${part}`));
  for (const part of ["noticing", "deciding", "meeting"]) {
    for (const other of ["repeated", "saving", "training"]) {
      assert.notEqual(await colour(`el-recovery-${part}`), await colour(`el-time-${other}`));
    }
  }
});

test("all charts have one cursor, and a mark says what it was, by mouse and by keys", async () => {
  const page = await see("?run=run/running");
  const plots = page.locator(".el-plot .u-over");
  await plots.nth(4).waitFor();
  await plots.first().hover({ position: { x: 300, y: 30 } });
  await page.waitForFunction(() => {
    const lines = [...document.querySelectorAll<HTMLElement>(".u-cursor-x")].map((line) => line.style.transform);
    return lines.length >= 5 && new Set(lines).size === 1 && !lines[0]?.includes("-10px");
  });
  await page.locator(".el-lane-cursor").waitFor();
  await page.locator(".el-mark.el-level-error").first().hover();
  await page.getByRole("tooltip").getByText(/attempt 1 ended: rank 21 on node-2 failed/).waitFor();
  await page.mouse.move(5, 5);
  await page.locator(".el-mark[tabindex='0']").focus();
  await page.keyboard.press("End");
  await page.getByRole("tooltip").getByText(/checkpoint \d+ committed/).first().waitFor();
});

test("a stretch of time is chosen by a drag, is kept in the address, and can be left", async () => {
  const page = await see("?run=run/running");
  const plot = page.locator(".el-plot .u-over").first();
  await plot.evaluate((element) => element.scrollIntoView({ block: "center" }));
  const box = await plot.boundingBox();
  assert.ok(box);
  await page.mouse.move(box.x + 200, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + 500, box.y + 50, { steps: 4 });
  await page.mouse.up();
  await page.waitForURL(/from=\d+/);
  await page.getByRole("button", { name: "Whole run" }).click();
  await page.waitForURL((url) => !url.searchParams.has("from"));
});

test("workers are grouped by unit, the straggler stands out, and a thousand ranks are one map", async () => {
  const page = await see("?run=run/slow&view=workers", "Unit 0", "Unit 1", "straggler", /left out the machine gpu-a100-11/);
  await page.getByRole("button", { name: /Slow or failed/ }).click();
  await page.getByRole("rowheader", { name: "node-0" }).waitFor({ state: "detached" });
  const large = await see("?run=run/large&view=workers", "256 workers");
  const map = large.getByRole("group", { name: /Map of forward passes, 1024 ranks/ });
  await map.focus();
  await large.keyboard.press("ArrowDown");
  await large.getByText(/^Rank 1 at 2026-/).waitFor();
});

test("events have their evidence and lead to the log line", async () => {
  const page = await see("?run=run/failed&view=events", /attempt 4 ended/);
  await page.getByRole("button", { name: "Errors" }).click();
  await page.getByText(/checkpoint \d+ committed/).first().waitFor({ state: "detached" });
  await page.getByText("Traceback, Exit code").first().click();
  await page.getByText(/torch\.OutOfMemoryError: CUDA out of memory\. Tried/).first().waitFor();
  await page.getByRole("link", { name: "log of rank 5" }).first().click();
  await page.waitForURL(/view=logs&attempt=4&rank=5/);
});

test("logs begin at the end with the rank that failed, are searched, and grow at the front", async () => {
  const page = await see("?run=run/failed&view=logs", /Tried to allocate/);
  assert.equal(await page.getByLabel("Rank", { exact: true }).locator("option").first().innerText(), "Rank 5, failed");
  const log = page.getByRole("log");
  assert.ok(await log.evaluate((element) => element.scrollHeight - element.scrollTop - element.clientHeight < 5));
  await log.evaluate((element) => element.scrollTo(0, 0));
  await page.getByRole("button", { name: "Show earlier output" }).click();
  await page.getByRole("button", { name: "Show earlier output" }).waitFor({ state: "detached" });
  await page.getByRole("searchbox").fill("data loader");
  await page.getByText(/12 lines found/).waitFor();
  await page.getByRole("region", { name: "Lines that were found" }).getByRole("button").last().click();
  await page.waitForURL(/at=\d+/);
});

test("a failure names its line, leads to it in the log, and says how to go on", async () => {
  const page = await see("?run=run/failed", "Why it failed", /after 3 restarts/, /airflow-elastic run --uri s3:\/\/runs\/team-a\/failed/);
  await page.getByRole("button", { name: "Copy the command" }).waitFor();
  await page.getByRole("link", { name: "Open the log" }).click();
  await page.waitForURL(/view=logs&attempt=4&rank=5&q=torch/);
});

test("who holds the others up has its costs", async () => {
  const page = await see("?run=run/slow", /Rank 26 \(node-3\) has held all others up for .* That costs at least .* of each .* step/);
  await page.getByRole("link", { name: "Show the workers" }).click();
  await page.waitForURL(/view=workers/);
});

test("while no step is made, the page shows what a rank printed last", async () => {
  const page = await see("?run=run/stuck", /No step yet: what rank 0 printed last/, /wait for \/mnt\/features\/_SUCCESS/);
  await page.getByRole("link", { name: "Open the log" }).click();
  await page.waitForURL(/view=logs&attempt=1&rank=0/);
});

test("a curve is smoothed, and the cursor says the step", async () => {
  const page = await see("?run=run/running");
  const smooth = page.getByRole("button", { name: "smooth" }).first();
  await smooth.click();
  assert.equal(await smooth.getAttribute("aria-pressed"), "true");
  await page.locator(".el-plot .u-over").first().hover({ position: { x: 300, y: 30 } });
  await page.locator(".el-lane-cursor").getByText(/step [\d,]+/).waitFor();
});

test("checkpoints show where they are kept, which are damaged and which are pinned", async () => {
  await see("?run=run/running&view=checkpoints", "17 checkpoints", /Damaged: model\.4\.weight/, /Pinned by ada/, "Used by attempt 2, task evaluate of DAG vit-finetune", "by ranks of attempt 2", /Evaluated: accuracy 0\.9120/);
});

test("every state has a page of its own", async () => {
  await see("?run=run/waiting", /2 of 4 workers wait for capacity/);
  await see("?run=run/scaled", "Training with 16 workers since 14:02");
  await see("?run=run/empty", "No history yet. It begins with the first steps that the ranks report.");
  await see("?run=run/empty&view=workers", "No worker yet.");
  await see("?run=run/empty&view=checkpoints", /No checkpoint yet/);
  await see("?run=run/nan", "NaN", /points not a number/);
  await see("?run=run/succeeded", "Success", /^Ended 2026-/, "2 phases", /36,000 steps from step 24,000, complete, accuracy 0\.9300/, "Results");
  const none = await see("?run=run/none", "there is no such run");
  await none.getByRole("link", { name: "Elastic runs" }).click();
  await none.getByText("gpt-medium-pretrain").waitFor();
});

test("times are in the zone that was chosen, and change with it", async () => {
  const page = await session.open("?run=run/failed&view=events", { zone: "Asia/Tokyo" });
  await page.getByText("2026-09-21 23:01:20").first().waitFor();
  await page.getByLabel("Time zone").selectOption("UTC");
  await page.getByText("2026-09-21 14:01:20").first().waitFor();
});
