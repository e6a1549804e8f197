// Points, fronts, steps, and what must follow each state of the search by clocks (clocks.cpp, clocks.py).
//
// A point is three clocks: robot, server, uplink; and while a skip is open, the uplink's without its idle time, which
// what is sent of the skip may have filled. A front holds the points of one choice of rows that no other point
// of it beats; where it grows too long, points of one cell become one that is nowhere later.
//
// Names: a, b are rows of a step's argument that robot and server made themselves, A, B rows that they have when it
// begins, x, y rows of its result that they make. m and n are one more than the rows of argument and result.
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr double kNever = 1e30;   // seconds: later than anything
constexpr double kBeyond = 1e29;  // whatever is later than this stands for never
constexpr int kLookedAt = 28;     // rows at which what must follow is computed; the others take the next one's

struct Point {
  double robot, server, up, work;
};
using Front = std::vector<Point>;

// One operator of the spine with the cheap ones merged into its argument; as in clocks.py.
struct Step {
  int argument, length, needed;
  const int* least;
  const double *robot, *server, *rest_robot, *rest_server;  // rest: of what is merged into the argument
  double up, up_alone, down, message;
  int sides;  // ways to do what lies between argument and this operator, unlinked
  const double *side_robot, *side_server;
  int opens, joins, grain;     // a skip begins at the argument; ends here; rows per class
  const int* skip_least;       // rows of the skip's source that rows of the first side operator (or of this one) need
  int beside;                  // whether a skip is open whose operators come behind this one: they need nothing of it
  int skip_rows, skip_needed;  // length of side operator; 0: this operator itself reads the skip
  const double *skip_robot, *skip_server;
  double skip_up, skip_down;      // per row of what is handed from the side to this operator
  double source_down, source_up;  // per row of the skip's source
  int early_rows, early_needed;  // of the operators that a skip which begins here has before this one; 0: it has none
  const int* early_least;        // rows of the argument that rows of these need
  const double *early_robot, *early_server;

  // Returns true if robot and server may make so many rows of the result. A result of one row is made by one of them.
  bool allowed(int x, int y) const { return x + y >= needed && (length > 1 || x + y <= 1); }
};

// Drop the points that another one beats in all clocks; the rest is sorted by the robot's.
void undominated(Front& front) {
  std::sort(front.begin(), front.end(), [](const Point& x, const Point& y) {
    return std::tie(x.robot, x.server, x.up, x.work) < std::tie(y.robot, y.server, y.up, y.work);
  });
  size_t kept = 0;
  for (const Point& p : front) {
    bool beaten = false;
    for (size_t i = kept; i-- > 0 && !beaten;) {
      const Point& q = front[i];
      beaten = q.server <= p.server && q.up <= p.up && q.work <= p.work;
    }
    if (!beaten) front[kept++] = p;
  }
  front.resize(kept);
}

// The problem, and what must follow each state at least.
struct Search {
  int count;
  const Step* steps;
  int input;
  double latency, message;
  int shares;
  const double* share;  // of the robot in the mixtures of paths that bound what must follow
  double target, grid;
  int most, linked, plainly_linked;
  mutable int told = 0;                     // the mixture that told last that a state is hopeless
  std::vector<std::vector<double>> ahead;   // step -> [share][x][y]: seconds behind its compute
  std::vector<std::vector<double>> before;  // step -> [A][B][share]: seconds from before its compute

  // Leave out what is beaten, and make points of one cell one until there are at most `most`.
  void thin(Front& front) const {
    if (front.size() < 2) return;
    undominated(front);
    double g = grid;
    while ((int)front.size() > most) {
      auto cell = [g](const Point& p) {
        return std::make_pair(std::floor(p.robot / g), std::floor((p.up - p.robot) / (2 * g)));
      };
      std::sort(front.begin(), front.end(), [&](const Point& x, const Point& y) { return cell(x) < cell(y); });
      size_t kept = 0;
      for (size_t i = 0; i < front.size(); i++) {
        const Point p = front[i];
        if (kept == 0 || cell(front[i - 1]) < cell(p)) {
          front[kept++] = p;
          continue;
        }
        Point& q = front[kept - 1];
        q.robot = std::min(q.robot, p.robot);
        q.server = std::min(q.server, p.server);
        q.up = std::min(q.up, p.up);
        q.work = std::min(q.work, p.work);
      }
      front.resize(kept);
      undominated(front);
      g *= 1.5;
    }
  }

  // Least cost of what runs beside a step's main argument, where a second on either side costs so much.
  static double least_side(const Step& s, double robot, double server) {
    double best = s.sides ? kNever : 0;
    for (int k = 0; k < s.sides; k++) best = std::min(best, robot * s.side_robot[k] + server * s.side_server[k]);
    return best;
  }

  // Least time after the last step: rows of the result that the robot did not make are sent to it.
  void look_behind_the_last(double result_down) {
    const Step& s = steps[count - 1];
    const int n = s.length + 1;
    std::vector<double>& out = ahead[count - 1];
    out.assign(shares * n * n, kNever);
    for (int i = 0; i < shares; i++)
      for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++)
          if (s.allowed(a, b))
            out[(i * n + a) * n + b] =
                a >= s.length ? 0.0 : (1 - share[i]) * (latency + message + (s.length - a) * result_down);
  }

  // Least time after step w - 1, from the least time after step w.
  void look_behind(int w) {
    const Step& s = steps[w];
    const int n = s.length + 1, m = s.argument + 1;
    const int q = (m + kLookedAt - 1) / kLookedAt;
    const std::vector<double>& next = ahead[w];
    ahead[w - 1].assign(shares * m * m, kNever);
    std::vector<double> side(shares * shares);
    for (int i = 0; i < shares; i++)
      for (int j = 0; j < shares; j++)
        side[i * shares + j] = least_side(s, std::min(share[i], share[j]), 1 - std::max(share[i], share[j]));
    std::vector<double> base(shares);
    for (int x = 0; x < n; x++) {
      for (int y = std::max(0, s.needed - x); y < n; y++) {
        if (!s.allowed(x, y)) continue;
        for (int i = 0; i < shares; i++)
          base[i] = share[i] * s.robot[x] + (1 - share[i]) * s.server[y] + next[(i * n + x) * n + y];
        if (base[0] >= kBeyond) continue;
        look_behind_rows(s, q, s.least[x], s.least[y], base, side, ahead[w - 1]);
      }
    }
    fill_between(m, q, ahead[w - 1]);
  }

  // The same for one choice of rows of the result, which need A and B rows of the argument: paths that stay on one
  // side, and those that change it once on the way, by the link.
  void look_behind_rows(const Step& s, int q, int A, int B, const std::vector<double>& base,
                        const std::vector<double>& side, std::vector<double>& out) const {
    const int m = s.argument + 1;
    for (int a = 0; a < m; a = a == m - 1 ? m : std::min(a + q, m - 1)) {
      for (int b = 0; b < m; b++) {
        if (b % q && b != m - 1) continue;
        const double ra = s.rest_robot[std::min(A, a)], rb = s.rest_server[std::min(B, b)];
        const double go_up = B > b ? latency + std::max(s.message + (B - b) * s.up, (B - b) * s.up_alone) : -1;
        const double go_down = A > a ? latency + message + (A - a) * s.down : -1;
        for (int i = 0; i < shares; i++) {
          double v = base[i] + side[i * shares + i] + share[i] * ra + (1 - share[i]) * rb;
          if (go_up > 0)
            for (int j = 0; j < i; j++)
              v = std::max(v, base[j] + side[i * shares + j] + share[j] * ra + (1 - share[i]) * rb +
                                  (share[i] - share[j]) * go_up);
          if (go_down > 0)
            for (int j = i + 1; j < shares; j++)
              v = std::max(v, base[j] + side[i * shares + j] + share[i] * ra + (1 - share[j]) * rb +
                                  (share[j] - share[i]) * go_down);
          double& o = out[(i * m + a) * m + b];
          if (v < o) o = v;
        }
      }
    }
  }

  // A side with more rows has fewer, too. Rows that were not examined take the value of the next ones.
  void fill_between(int m, int q, std::vector<double>& out) const {
    for (int i = 0; i < shares; i++) {
      for (int a = 0; a < m; a++) {
        for (int b = 0; b < m; b++) {
          if ((a % q && a != m - 1) || (b % q && b != m - 1)) continue;
          double& o = out[(i * m + a) * m + b];
          if (a) o = std::min(o, out[(i * m + (a - 1) / q * q) * m + b]);
          if (b) o = std::min(o, out[(i * m + a) * m + (b - 1) / q * q]);
        }
      }
    }
    if (q == 1) return;
    auto next = [m, q](int rows) { return std::min(m - 1, (rows + q - 1) / q * q); };
    for (int i = 0; i < shares; i++)
      for (int a = 0; a < m; a++)
        for (int b = 0; b < m; b++) out[(i * m + a) * m + b] = out[(i * m + next(a)) * m + next(b)];
  }

  void look_ahead(double result_down) {
    ahead.resize(count);
    look_behind_the_last(result_down);
    for (int w = count - 1; w > 0; w--) look_behind(w);
    before.resize(count);
    for (int w = 0; w < count; w++) look_at(w);
  }

  // Least time from the beginning of a step, of whose argument exactly so many rows are wanted.
  void look_at(int w) {
    const Step& s = steps[w];
    const int n = s.length + 1, m = s.argument + 1;
    before[w].assign(m * m * shares, kNever);
    for (int x = 0; x < n; x++)
      for (int y = 0; y < n; y++) {
        if (!s.allowed(x, y)) continue;
        double* least = &before[w][(s.least[x] * m + s.least[y]) * shares];
        for (int i = 0; i < shares; i++)
          least[i] = std::min(least[i], share[i] * s.robot[x] + (1 - share[i]) * s.server[y] +
                                            ahead[w][(i * n + x) * n + y]);
      }
  }

  // No plan that goes through this state behind step w is done sooner.
  double bound(int w, int a, int b, const Point& p) const {
    const int n = steps[w].length + 1;
    double best = 0;
    for (int i = 0; i < shares; i++)
      best = std::max(best, share[i] * p.robot + (1 - share[i]) * p.server + ahead[w][(i * n + a) * n + b]);
    return best;
  }

  // Returns true if no plan with exactly A and B rows of the argument at the beginning of step w meets the target.
  bool hopeless(int w, int A, int B, const Point& p) const {
    const double* least = &before[w][(A * (steps[w].argument + 1) + B) * shares];
    if (p.robot >= target || p.server >= target) return true;
    auto late = [&](int i) { return share[i] * p.robot + (1 - share[i]) * p.server + least[i] >= target; };
    if (late(told)) return true;
    for (int i = 0; i < shares; i++)
      if (late(i)) {
        told = i;
        return true;
      }
    return false;
  }
};

}  // namespace
