// The tables of events: sorted by a click on a heading, and searched.
$(() => {
  if (!/\/events\/./.test(location.pathname)) return;
  $("article table").addClass("events").DataTable({paging: false, info: false, autoWidth: false, order: []});
});
