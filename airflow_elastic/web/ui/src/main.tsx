// What Airflow loads: it imports this script, takes globalThis.AirflowPlugin or a global of the app's name, and renders it.
// Airflow has two apps of this script. Whichever comes first sets the names of both, so the second need not load it.
import { Page } from "./page.tsx";
import { adoptStyles } from "./styles/adopt.ts";

adoptStyles();
for (const name of ["AirflowPlugin", "Training", "Elastic runs"]) Reflect.set(globalThis, name, Page);

export default Page;
