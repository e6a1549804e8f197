// Least makespan of robot and server over all counts of rows, forward through the network: see clocks.py.
//
// A point is three clocks: robot, server, uplink. A front holds the points of one choice of rows that no other point
// of it beats; where it grows too long, points of one cell become one that is nowhere later.

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace {

struct Point { double robot, server, up; };
using Front = std::vector<Point>;

struct Step {
  int argument, length, needed;
  const int* least;
  const double *robot, *server, *rest_robot, *rest_server;  // rest: of what is merged into the argument
  double up, up_alone, down, message;
  int sides;                       // ways to do what lies between argument and this operator, unlinked
  const double *side_robot, *side_server;
  int opens, joins, grain;         // a skip begins at the argument; ends here; rows per class
  const int* skip_least;           // rows of the skip's source that rows of the first side operator (or of this one) need
  int skip_rows, skip_needed;      // length of side operator; 0: this operator itself reads the skip
  const double *skip_robot, *skip_server;
  double skip_up, skip_down;       // per row of what is handed from the side to this operator
  double source_down;              // per row of the skip's source
};

void undominated(Front& front) {
  std::sort(front.begin(), front.end(), [](const Point& x, const Point& y) {
    return x.robot != y.robot ? x.robot < y.robot : x.server != y.server ? x.server < y.server : x.up < y.up; });
  static thread_local std::vector<std::pair<double, double>> stairs;  // server ascending, up descending
  stairs.clear();
  size_t kept = 0;
  for (const Point& p : front) {
    auto it = std::upper_bound(stairs.begin(), stairs.end(), p.server, [](double v, const std::pair<double, double>& s) { return v < s.first; });
    if (it != stairs.begin() && std::prev(it)->second <= p.up) continue;
    auto from = std::lower_bound(stairs.begin(), stairs.end(), p.server, [](const std::pair<double, double>& s, double v) { return s.first < v; });
    auto to = from;
    while (to != stairs.end() && to->second >= p.up) ++to;
    if (from == to) stairs.insert(from, {p.server, p.up});
    else { *from = {p.server, p.up}; stairs.erase(from + 1, to); }
    front[kept++] = p;
  }
  front.resize(kept);
}

struct Key { int robot, server, computed, late; bool operator<(const Key& o) const { return std::tie(robot, server, computed, late) < std::tie(o.robot, o.server, o.computed, o.late); } };

struct Search {
  int count; const Step* steps; int input; double latency, message; int shares; const double* share;
  double target, grid; int most, linked;
  std::vector<std::vector<double>> ahead;  // step -> [share][a][b] behind its compute

  void thin(Front& front) const {
    if (front.size() < 2) return;
    undominated(front);
    double g = grid;
    while ((int)front.size() > most) {
      auto cell = [g](const Point& p) { return std::make_pair(std::floor(p.robot / g), std::floor((p.up - p.robot) / (2 * g))); };
      std::sort(front.begin(), front.end(), [&](const Point& x, const Point& y) { return cell(x) < cell(y); });
      size_t kept = 0;
      for (size_t i = 0; i < front.size(); i++) {
        if (!i || cell(front[i - 1]) < cell(front[i]) || kept == 0) { front[kept++] = front[i]; continue; }
        Point& q = front[kept - 1]; const Point& p = front[i];
        q.robot = std::min(q.robot, p.robot); q.server = std::min(q.server, p.server); q.up = std::min(q.up, p.up);
      }
      front.resize(kept);
      undominated(front);
      g *= 1.5;
    }
  }

  bool allowed(const Step& s, int a, int b) const { return a + b >= s.needed && (s.length > 1 || a + b <= 1); }

  double least_side(const Step& s, double robot, double server) const {
    double best = 0;
    if (s.sides) { best = 1e30; for (int k = 0; k < s.sides; k++) best = std::min(best, robot * s.side_robot[k] + server * s.side_server[k]); }
    if (s.joins && s.skip_rows) {
      double m = 1e30;
      for (int x = 0; x <= s.skip_rows; x++) { int y = std::max(0, s.skip_needed - x); m = std::min(m, robot * s.skip_robot[x] + server * s.skip_server[y]); }
      best += m; }
    return best;
  }

  void look_ahead(double result_down) {
    ahead.resize(count);
    { const Step& s = steps[count - 1]; int n = s.length + 1; ahead[count - 1].assign(shares * n * n, 1e30);
      for (int i = 0; i < shares; i++) for (int a = 0; a < n; a++) for (int b = 0; b < n; b++) if (allowed(s, a, b))
        ahead[count - 1][(i * n + a) * n + b] = a >= s.length ? 0.0 : (1 - share[i]) * (latency + message + (s.length - a) * result_down);
    }
    for (int w = count - 1; w > 0; w--) {
      const Step& s = steps[w]; int n = s.length + 1, m = s.argument + 1;
      std::vector<double>& out = ahead[w - 1]; out.assign(shares * m * m, 1e30);
      const std::vector<double>& next = ahead[w];
      std::vector<double> side(shares * shares); for (int i = 0; i < shares; i++) for (int j = 0; j < shares; j++) side[i * shares + j] = least_side(s, std::min(share[i], share[j]), 1 - std::max(share[i], share[j]));
      std::vector<double> base(shares), up(shares), down(shares);
      int q = (m + 27) / 28;  // the others take the value of a state that has more
      for (int x = 0; x < n; x++) for (int y = std::max(0, s.needed - x); y < n; y++) {
        if (!allowed(s, x, y)) continue;
        int A = s.least[x], B = s.least[y];
        for (int i = 0; i < shares; i++) base[i] = share[i] * s.robot[x] + (1 - share[i]) * s.server[y] + next[(i * n + x) * n + y];
        if (base[0] >= 1e29) continue;
        for (int a = 0; a < m; a = a == m - 1 ? m : std::min(a + q, m - 1)) for (int b = 0; b < m; b++) {
          if (b % q && b != m - 1) continue;
          double ra = s.rest_robot[std::min(A, a)], rb = s.rest_server[std::min(B, b)];
          double go_up = B > b ? latency + std::max(s.message + (B - b) * s.up, (B - b) * s.up_alone) : -1, go_down = A > a ? latency + message + (A - a) * s.down : -1;
          for (int i = 0; i < shares; i++) {
            double v = base[i] + side[i * shares + i] + share[i] * ra + (1 - share[i]) * rb;
            if (go_up > 0) for (int j = 0; j < i; j++) v = std::max(v, base[j] + side[i * shares + j] + share[j] * ra + (1 - share[i]) * rb + (share[i] - share[j]) * go_up);
            if (go_down > 0) for (int j = i + 1; j < shares; j++) v = std::max(v, base[j] + side[i * shares + j] + share[i] * ra + (1 - share[j]) * rb + (share[j] - share[i]) * go_down);
            double& o = out[(i * m + a) * m + b]; if (v < o) o = v;
          }
        }
      }
      for (int i = 0; i < shares; i++) for (int a = 0; a < m; a++) for (int b = 0; b < m; b++) {  // having more is having less, too
        if ((a % q && a != m - 1) || (b % q && b != m - 1)) continue;
        double& o = out[(i * m + a) * m + b];
        if (a) o = std::min(o, out[(i * m + (a - 1) / q * q) * m + b]);
        if (b) o = std::min(o, out[(i * m + a) * m + (b - 1) / q * q]);
      }
      if (q > 1) for (int i = 0; i < shares; i++) for (int a = 0; a < m; a++) for (int b = 0; b < m; b++)
        out[(i * m + a) * m + b] = out[(i * m + std::min(m - 1, (a + q - 1) / q * q)) * m + std::min(m - 1, (b + q - 1) / q * q)];
    }
  }

  double bound(int w, int a, int b, const Point& p) const {
    int n = steps[w].length + 1; double best = 0;
    for (int i = 0; i < shares; i++) best = std::max(best, share[i] * p.robot + (1 - share[i]) * p.server + ahead[w][(i * n + a) * n + b]);
    return best;
  }

  double run(double result_down) {
    int n0 = input + 1;
    std::map<std::pair<int, int>, std::vector<Front>> held;  // (rows of an open skip: robot, server) -> [a][b]
    held[{0, 0}].resize(n0 * n0);
    held[{0, 0}][input * n0].push_back({0, 0, 0});
    double first_server = 0;  // no server is done with the skip's source before
    for (int w = 0; w < count; w++) {
      const Step& s = steps[w]; int m = s.argument + 1, n = s.length + 1;
      if (s.opens) { first_server = 1e30; for (auto& slice : held) for (int a = 0; a < m; a++) for (int b = 1; b < m; b++) for (auto& p : slice.second[a * m + b]) first_server = std::min(first_server, p.server); if (first_server > 1e29) first_server = 0; }
      std::map<std::pair<int, int>, std::vector<Front>> after;
      std::vector<char> want(m * m, 0);
      for (int x = 0; x < n; x++) for (int y = 0; y < n; y++) if (allowed(s, x, y)) want[s.least[x] * m + s.least[y]] = 1;
      size_t points = 0;
      for (auto& slice : held) {
        std::vector<Front>& H = slice.second;
        std::vector<int> live; for (int i = 0; i < m * m; i++) if (!H[i].empty()) live.push_back(i);
        if (live.empty()) continue;
        std::map<Key, std::vector<Front>> ready;
        auto put = [&](const Key& key, int A, int B, const Point& p) {
          if (bound_before(w, A, B, p) >= target) return;
          auto& fronts = ready[key]; if (fronts.empty()) fronts.resize(m * m);
          Front& f = fronts[A * m + B]; f.push_back(p); if (f.size() > 3000) thin(f); };
        auto ways = [&](const std::pair<int, int>& key, int A, int B, const Point& p, double at_robot, double at_server, double up) {
          if (s.joins && s.skip_rows) {
            if (bound_before(w, A, B, {std::max(p.robot, at_robot), std::max(p.server, at_server), up}) >= target) return;
            for (int e = 0; e <= s.skip_needed; e++) { if (s.skip_least[e] > key.second) break;
              int c = s.skip_needed - e, lacking = s.skip_least[c] - key.first;
              double start = p.robot; if (c && lacking > 0) start = std::max(start, first_server + latency + message + lacking * s.source_down);
              put({key.first, key.second, e, at_robot > 0}, A, B, {std::max(start + s.skip_robot[c], at_robot), std::max(p.server + s.skip_server[e], at_server), up}); }
            return; }
          if (!s.sides) { put({key.first, key.second, 0, 0}, A, B, {std::max(p.robot, at_robot), std::max(p.server, at_server), up}); return; }
          for (int k = 0; k < s.sides; k++) put({key.first, key.second, 0, 0}, A, B, {std::max(p.robot + s.side_robot[k], at_robot), std::max(p.server + s.side_server[k], at_server), up}); };
        if (s.opens) {
          auto cls = [&](int rows) { return std::min(s.argument, (rows + s.grain - 1) / s.grain * s.grain); };
          for (int i : live) { int a = i / m, b = i % m;
            for (const Point& p : H[i]) for (int A = 0; A < m; A++) for (int B = 0; B < m; B++) {
              if (!want[A * m + B]) continue;
              int as = cls(std::max(a, A)), bs = B ? cls(std::max(b, B)) : s.argument, got = std::max(b, B);
              for (int i = std::max(0, A - a); i <= A; i++) {  // rows that the robot is sent
                double at_robot = i ? p.server + i * s.down + message + latency : 0;
                if (i > std::max(0, A - a) && at_robot >= p.robot + s.rest_robot[std::min(A, a)]) break;
                for (int j = std::max(0, B - b); j <= B; j++) {
                  double up = j ? std::max(p.up, p.robot) + j * s.up + s.message : p.up;
                  double at_server = j ? latency + std::max(up, p.robot + j * s.up_alone) : 0;
                  if (j > std::max(0, B - b) && at_server >= p.server + s.rest_server[std::min(B, b)]) break;
                  Point q = p; q.robot += s.rest_robot[A - i]; q.server += s.rest_server[B - j];
                  if (bound_before(w, A, B, {std::max(q.robot, at_robot), std::max(q.server, at_server), up}) >= target) continue;
                  ways({as, bs}, A, B, q, at_robot, at_server, up);
                  for (int rows = bs + 1; rows <= s.argument; rows++) {
                    if (cls(rows) != rows) continue;
                    double begin = j ? up : std::max(p.up, p.robot) + s.message;
                    int fewest = std::max(got, (rows - 1) / s.grain * s.grain + 1);  // all that the class stands for
                    ways({as, rows}, A, B, q, at_robot, at_server, begin + (fewest - got) * s.up); } } }
            } }
        } else {
          std::vector<Front> Ha(m * m), H0(m * m);
          auto add = [&](Front& f, const Front& q) { if (!q.empty()) { f.insert(f.end(), q.begin(), q.end()); thin(f); } };
          for (int b = 0; b < m; b++) for (int a = m - 1; a >= 0; a--) { Ha[a * m + b] = H[a * m + b]; if (a < m - 1) add(Ha[a * m + b], Ha[(a + 1) * m + b]); }
          for (int a = m - 1; a >= 0; a--) for (int b = m - 1; b >= 0; b--) { H0[a * m + b] = Ha[a * m + b]; if (b < m - 1) add(H0[a * m + b], H0[a * m + b + 1]); }
          const int far = 5;
          std::vector<Front> La(m * m), Lb(m * m), Lab(m * m);
          for (int b = 0; b < m; b++) for (int a = 0; a < m; a++) { La[a * m + b] = H0[a * m + b]; if (a) add(La[a * m + b], La[(a - 1) * m + b]); }
          for (int a = 0; a < m; a++) for (int b = 0; b < m; b++) { Lb[a * m + b] = H0[a * m + b]; if (b) add(Lb[a * m + b], Lb[a * m + b - 1]); }
          for (int a = 0; a < m; a++) for (int b = 0; b < m; b++) { Lab[a * m + b] = La[a * m + b]; if (b) add(Lab[a * m + b], Lab[a * m + b - 1]); }
          for (int A = 0; A < m; A++) for (int B = 0; B < m; B++) {
            if (!want[A * m + B]) continue;
            double ra = s.rest_robot[A], rb = s.rest_server[B];
            for (Point p : H0[A * m + B]) { p.robot += ra; p.server += rb; ways(slice.first, A, B, p, 0, 0, p.up); }
            for (int b = 0; b < B; b++) for (Point p : H0[A * m + b]) { double up = std::max(p.up, p.robot) + (B - b) * s.up + s.message;
              double at = latency + std::max(up, p.robot + (B - b) * s.up_alone);
              p.robot += ra; p.server += s.rest_server[b]; ways(slice.first, A, B, p, 0, at, up); }
            for (int a = 0; a < A; a++) for (Point p : H0[a * m + B]) { double at = p.server + (A - a) * s.down + message + latency;
              p.robot += s.rest_robot[a]; p.server += rb; ways(slice.first, A, B, p, at, 0, p.up); }
            for (int i = 1; i <= far && i <= A; i++) for (int j = 1; j <= far && j <= B; j++) {  // the last of each: or more
              int a = A - i, b = B - j;
              const Front& f = i < far ? (j < far ? H0 : Lb)[a * m + b] : (j < far ? La : Lab)[a * m + b];
              for (Point p : f) {
                double up = std::max(p.up, p.robot) + j * s.up + s.message, at = p.server + i * s.down + message + latency;
                double there = latency + std::max(up, p.robot + j * s.up_alone);
                p.robot += i < far ? s.rest_robot[a] : 0; p.server += j < far ? s.rest_server[b] : 0; ways(slice.first, A, B, p, at, there, up); } }
          }
        }
        for (auto& fronts : ready) {
          for (auto& f : fronts.second) thin(f);
          std::pair<int, int> key = s.joins ? std::pair<int, int>(0, 0) : std::pair<int, int>(fronts.first.robot, fronts.first.server);
          auto& to = after[key]; if (to.empty()) to.resize(n * n);
          int as = fronts.first.robot, bs = fronts.first.server, e = fronts.first.computed, c = s.skip_needed - e;
          for (int x = 0; x < n; x++) for (int y = std::max(0, s.needed - x); y < n; y++) { if (!allowed(s, x, y)) continue;
            Front& f = to[x * n + y];
            bool open = fronts.first.robot > 0 && !s.joins;
            auto compute = [&](Point p) { p.robot += s.robot[x]; p.server += s.server[y];
              if (linked && x == 0 && !open) p.robot = std::max(p.robot, p.server + message + latency);
              p.up = std::max(p.up, p.robot);
              if (linked && y == 0 && !(fronts.first.server > 0 && !s.joins)) p.server = std::max(p.server, p.robot);
              if (bound(w, x, y, p) < target) { f.push_back(p); if (f.size() > 3000) thin(f); } };
            for (Point p : fronts.second[s.least[x] * m + s.least[y]]) {
              if (!s.joins) { compute(p); continue; }
              if (!s.skip_rows) {  // the skip itself is added
                if (s.skip_least[y] > bs) break;
                int lacking = s.skip_least[x] - as; if (lacking > 0) p.robot = std::max(p.robot, first_server + latency + message + lacking * s.source_down);
                compute(p); continue; }
              Point q = p;
              if (y > e) { q.up = std::max(q.up, fronts.first.late ? 0.0 : p.robot) + (y - e) * s.skip_up + message; q.server = std::max(p.server, q.up + latency); }
              if (x > c) {  // the robot makes z rows of the side, and is sent the others
                double least = 1e30;
                for (int z = c; z <= x; z++) {
                  double own = fronts.first.late ? 0.0 : p.robot + s.skip_robot[z] - s.skip_robot[c];
                  if (z > c && s.skip_least[z] > as) own = std::max(own, first_server + latency + message + (s.skip_least[z] - as) * s.source_down);
                  if (z < x) own = std::max(own, first_server + s.skip_server[e] + latency + message + (x - z) * s.skip_down);
                  least = std::min(least, own); }
                q.robot = std::max(p.robot, least); }
              compute(q);
            } }
        }
      }
      for (auto& slice : after) { for (int i = 0; i < n * n; i++) { Front& f = slice.second[i]; thin(f); points += f.size(); } }
      held.swap(after);
      if (!points) return target;
    }
    const Step& s = steps[count - 1]; int n = s.length + 1; double best = target;
    for (auto& slice : held) for (int a = 0; a < n; a++) for (int b = 0; b < n; b++) for (const Point& p : slice.second[a * n + b]) {
      double end = a >= s.length ? std::max(p.robot, p.server) : std::max(p.robot, p.server + (s.length - a) * result_down + message + latency);
      best = std::min(best, end); }
    return best;
  }

  double bound_before(int w, int A, int B, const Point& p) const {  // weak: before the step is taken
    double best = std::max(p.robot, p.server);
    if (w < 0) return best;
    const std::vector<double>& v = before[w];
    for (int i = 0; i < shares; i++) best = std::max(best, share[i] * p.robot + (1 - share[i]) * p.server + v[i]);
    return best;
  }
  std::vector<std::vector<double>> before;
  void prepare() { before.resize(count); for (int w = 0; w < count; w++) { const Step& s = steps[w]; int n = s.length + 1; before[w].assign(shares, 1e30);
    for (int i = 0; i < shares; i++) for (int x = 0; x < n; x++) for (int y = 0; y < n; y++) if (allowed(s, x, y)) {
      double v = share[i] * s.robot[x] + (1 - share[i]) * s.server[y] + ahead[w][(i * n + x) * n + y]; before[w][i] = std::min(before[w][i], v); } } }
};

}  // namespace

extern "C" double least_makespan(int count, const Step* steps, int input, double latency, double message, int shares, const double* share,
                                 double target, double grid, int most, double result_down, int linked) {
  Search search{count, steps, input, latency, message, shares, share, target, grid, most, linked, {}, {}};
  search.look_ahead(result_down);
  search.prepare();
  return search.run(result_down);
}
