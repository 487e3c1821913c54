// How long our pages take to appear inside a real Airflow, once its own page is there: VISIT is JSON, see below.
// tests/bench/test_first_paint.py starts it. It prints a line of JSON for each visit, in milliseconds.
import { chromium, type Browser, type Page } from "playwright-core";

interface Visit {
  url: string;
  user: string;
  password: string;
  /** Of a task instance, below the url. */
  page: string;
  times: number;
}

interface Found {
  /** From the click until something of ours is painted, and until the state of the run is. */
  first: number;
  content: number;
  /** What our page fetched until then: from the click to the start, how long it took, and bytes sent. */
  fetched: { name: string; start: number; took: number; bytes: number }[];
}

const visit = JSON.parse(process.env.VISIT ?? "{}") as Visit;
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  for (let time = 0; time < visit.times; time++) {
    await once(browser);
  }
} finally {
  await browser.close();
}

/** A new person with an empty cache, who opens the tab twice. */
async function once(browser: Browser): Promise<void> {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  context.setDefaultTimeout(120_000);
  const page = await context.newPage();
  await page.goto(`${visit.url}/auth/login/`);
  await page.locator("input[name=username]").fill(visit.user);
  await page.locator("input[name=password]").fill(visit.password);
  await page.locator("button[type=submit], button:has-text('Sign in')").first().click();
  await page.waitForURL((url) => !url.pathname.includes("/auth/login"));
  for (const cache of ["cold", "warm"]) {
    console.log(JSON.stringify({ cache, ...(await opened(page)) }));
  }
  await context.close();
}

async function opened(page: Page): Promise<Found> {
  await page.goto(visit.url + visit.page);
  await page.getByRole("link", { name: "Training", exact: true }).waitFor();
  await page.waitForLoadState("networkidle");
  return page.evaluate(async () => {
    const link = [...document.querySelectorAll("a")].find((one) => one.textContent?.trim() === "Training");
    if (!link) throw new Error("there is no tab Training");
    performance.clearResourceTimings();
    const painted = (selector: string) =>
      new Promise<number>((resolve) => {
        const look = () => {
          if (!document.querySelector(selector)) return;
          observer.disconnect();
          // The second frame begins when the first one is painted.
          requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
        };
        const observer = new MutationObserver(look);
        observer.observe(document.body, { childList: true, subtree: true });
        look();
      });
    const began = performance.now();
    const both = Promise.all([painted(".elastic *"), painted(".elastic .el-header .el-state")]);
    link.click();
    const [first, content] = await both;
    const fetched = performance
      .getEntriesByType("resource")
      .map((one) => one as PerformanceResourceTiming)
      .filter((one) => one.name.includes("/elastic/"))
      .map((one) => ({
        name: new URL(one.name).pathname.replace(/.*\/elastic/, ""),
        start: one.startTime - began,
        took: one.duration,
        bytes: one.transferSize,
      }));
    return { first: first - began, content: content - began, fetched };
  });
}
