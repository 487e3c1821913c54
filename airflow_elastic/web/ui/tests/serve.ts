// Made-up runs to look at while the pages are being written: `npm run serve`, or `npm run serve -- 8800`.
import { serve } from "./fixtures/server.ts";

const fixture = await serve(Number(process.argv[2] ?? 8765));
console.log(`Made-up runs: ${fixture.url}`);
