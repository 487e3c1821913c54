// A style sheet is imported as its text; parts/style.ts puts it into the page.
declare module "*.css" {
  const text: string;
  export default text;
}
